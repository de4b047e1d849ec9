#include "proto/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "proto/utf8.h"

#define LOG_LINE_MAX 4096 /* PIPE_BUF: lines of several processes into one pipe do not mix */

static atomic_int log_level_now = LOG_INFO_LEVEL;
static const char *const level_names[] = {"error", "warn", "info", "debug"};

void log_set_level(enum log_level level)
{
    atomic_store(&log_level_now, (int)level);
}

int log_parse_level(const char *text)
{
    for (int i = 0; i < (int)(sizeof level_names / sizeof level_names[0]); i++)
        if (text != NULL && strcmp(text, level_names[i]) == 0) return i;
    return -1;
}

/* The line so far; what does not fit is left out and marked. */
struct line {
    char text[LOG_LINE_MAX];
    size_t len;
    int cut;
};
#define LINE_TAIL "...\n"

static void line_put(struct line *line, const char *text, size_t len)
{
    if (line->cut || len > sizeof line->text - sizeof LINE_TAIL - line->len) {
        line->cut = 1;
        return;
    }
    memcpy(line->text + line->len, text, len);
    line->len += len;
}

/* A value is bare when nobody can mistake its end; anything else is put between quotes and escaped, so no text from
 * outside can start a line or a key of its own. */
static int value_is_bare(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (text[i] <= ' ' || text[i] > '~' || text[i] == '"' || text[i] == '\\' || text[i] == '=') return 0;
    return len > 0;
}

static void line_escape(struct line *line, const char *text, size_t len)
{
    for (size_t at = 0; at < len;) {
        unsigned char byte = (unsigned char)text[at];
        size_t step = utf8_char_len(text + at, len - at);
        char escaped[8];
        /* U+0080 to U+009F are control characters too: terminals obey them. */
        int control = byte < 0x20 || byte == 0x7f || (byte == 0xc2 && step == 2 && (unsigned char)text[at + 1] < 0xa0);
        if (step == 0 || control) {
            for (size_t i = 0; i < (step == 0 ? 1 : step); i++) {
                int n = byte == '\n' ? snprintf(escaped, sizeof escaped, "\\n")
                                     : snprintf(escaped, sizeof escaped, "\\x%02x", (unsigned char)text[at + i]);
                line_put(line, escaped, (size_t)n);
            }
        } else if (byte == '"' || byte == '\\') {
            escaped[0] = '\\';
            escaped[1] = (char)byte;
            line_put(line, escaped, 2);
        } else {
            line_put(line, text + at, step);
        }
        at += step == 0 ? 1 : step;
    }
}

static void line_value(struct line *line, const char *text, size_t len, int inside_quotes)
{
    if (!inside_quotes && value_is_bare(text, len)) {
        line_put(line, text, len);
        return;
    }
    if (!inside_quotes) line_put(line, "\"", 1);
    line_escape(line, text, len);
    if (!inside_quotes) line_put(line, "\"", 1);
}

/* One conversion of the format, "%-5.*s" and the like: its text and its argument type. */
struct conversion {
    char spec[32];
    size_t len;
    char type;   /* d u s c f p %, 0 when it is none that this knows */
    char length; /* 0, l, L (long long), z, j, t; h and hh arrive as int */
    int stars, precision_star;
};

static struct conversion conversion_read(const char *format)
{
    struct conversion c = {.len = 1};
    size_t at = 1;
    int after_dot = 0;
    for (; format[at] != 0 && strchr("-+ #0123456789.*", format[at]) != NULL; at++) {
        if (format[at] == '.') after_dot = 1;
        if (format[at] == '*') {
            c.stars++;
            c.precision_star = after_dot;
        }
    }
    for (; format[at] != 0 && strchr("hlzjtL", format[at]) != NULL; at++)
        c.length = format[at] == 'l' && c.length == 'l' ? 'L' : format[at];
    char type = format[at];
    if (type == 0 || at + 2 > sizeof c.spec || c.stars > 1) return c;
    if (strchr("di", type) != NULL) c.type = 'd';
    if (strchr("uxXo", type) != NULL) c.type = 'u';
    if (strchr("eEfFgGaA", type) != NULL) c.type = 'f';
    if (strchr("scp%", type) != NULL) c.type = type;
    c.len = at + 1;
    memcpy(c.spec, format, c.len);
    return c;
}

/* A conversion with its argument, by way of snprintf; a star takes an int before it. */
#define CONVERT(type)                                                                                                  \
    do {                                                                                                               \
        type value = va_arg(*args, type);                                                                              \
        n = c->stars ? snprintf(text, sizeof text, c->spec, star, value)                                               \
                     : snprintf(text, sizeof text, c->spec, value);                                                    \
    } while (0)

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
static void line_convert(struct line *line, const struct conversion *c, va_list *args, int inside_quotes)
{
    char text[LOG_LINE_MAX];
    int n = 0, star = c->stars ? va_arg(*args, int) : 0;
    if (c->type == 's') {
        const char *value = va_arg(*args, const char *);
        if (value == NULL) value = "(null)";
        if (c->stars && c->precision_star && star >= 0) {
            line_value(line, value, strnlen(value, (size_t)star), inside_quotes);
            return;
        }
        if (strcmp(c->spec, "%s") == 0) {
            line_value(line, value, strlen(value), inside_quotes);
            return;
        }
        n = c->stars ? snprintf(text, sizeof text, c->spec, star, value) : snprintf(text, sizeof text, c->spec, value);
    } else if (c->type == 'f') {
        if (c->length == 'L')
            CONVERT(long double);
        else
            CONVERT(double);
    } else if (c->type == 'p') {
        CONVERT(void *);
    } else if (c->type == 'c') {
        CONVERT(int);
    } else if (c->length == 'l') {
        CONVERT(long);
    } else if (c->length == 'L') {
        CONVERT(long long);
    } else if (c->length == 'z') {
        CONVERT(size_t);
    } else if (c->length == 'j') {
        CONVERT(intmax_t);
    } else if (c->length == 't') {
        CONVERT(ptrdiff_t);
    } else {
        CONVERT(int);
    }
    if (n > 0) line_value(line, text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1, inside_quotes);
}
#pragma GCC diagnostic pop

void log_event(enum log_level level, const char *event, const char *format, ...)
{
    if ((int)level > atomic_load(&log_level_now)) return;
    int saved_errno = errno;
    struct line line = {.len = 0};
    struct timespec now;
    struct tm utc;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    line.len = strftime(line.text, sizeof line.text, "%Y-%m-%dT%H:%M:%S", &utc);
    line.len += (size_t)snprintf(line.text + line.len, sizeof line.text - line.len, ".%06ldZ %s ", now.tv_nsec / 1000,
                                 level_names[level]);
    line_value(&line, event, strlen(event), 0);
    if (format[0] != 0) line_put(&line, " ", 1);

    va_list args;
    va_start(args, format);
    int inside_quotes = 0;
    for (const char *at = format; *at != 0;) {
        if (*at != '%') {
            if (*at == '"') inside_quotes = !inside_quotes;
            line_put(&line, at++, 1);
            continue;
        }
        struct conversion c = conversion_read(at);
        if (c.type == '%')
            line_put(&line, "%", 1);
        else if (c.type != 0)
            line_convert(&line, &c, &args, inside_quotes);
        else
            break; /* which argument comes next is not known any more */
        at += c.len;
    }
    va_end(args);
    if (line.cut)
        memcpy(line.text + line.len, LINE_TAIL, sizeof LINE_TAIL - 1);
    else
        line.text[line.len] = '\n';
    line.len += line.cut ? sizeof LINE_TAIL - 1 : 1;
    /* A log that cannot be written is nothing a program could act on. */
    ssize_t written = write(STDERR_FILENO, line.text, line.len);
    (void)written;
    errno = saved_errno;
}
