/* log.h: one line an event on stderr: UTC time, level, event name, key=value pairs; values are escaped. Never keys,
 * never prompts. Thread-safe (one write call a line). */
#ifndef KVF_LOG_H
#define KVF_LOG_H

enum log_level { LOG_ERROR_LEVEL, LOG_WARN_LEVEL, LOG_INFO_LEVEL, LOG_DEBUG_LEVEL };
void log_set_level(enum log_level level);
int log_parse_level(const char *text); /* error, warn, info, debug; -1 */
/* log_event(LOG_INFO_LEVEL, "worker_joined", "worker=%s models=%d", ...) */
__attribute__((format(printf, 3, 4))) void log_event(enum log_level level, const char *event, const char *format, ...);

#endif
