/* machine.h: facts about this machine and process, read from /proc. Negative or "" where it does not say. */
#ifndef KVF_WORKER_MACHINE_H
#define KVF_WORKER_MACHINE_H

#include <stddef.h>
#include <stdint.h>

int64_t machine_memory_bytes(void);
int64_t machine_rss_bytes(void);             /* resident now */
int64_t machine_peak_bytes(void);            /* resident at most so far */
int machine_cores(void);                     /* that this process may use, >= 1 */
void machine_device(char *text, size_t cap); /* processor's name */
void machine_host(char *text, size_t cap);

#endif
