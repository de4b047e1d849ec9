/* format.h: figures as people read them. Every function writes a NUL-terminated text and returns it; a figure that was
 * not measured (NaN) is "-". Pure. */
#ifndef KVF_FORMAT_H
#define KVF_FORMAT_H

#include <stddef.h>
#include <stdint.h>

#define FORMAT_MAX 32

const char *format_bytes(double bytes, char out[FORMAT_MAX]); /* 812 B, 6.2 MiB */
const char *format_count(double value, char out[FORMAT_MAX]); /* 12,345 (rounded to a whole number) */
const char *format_fixed(double value, int decimals, char out[FORMAT_MAX]);
const char *format_signed_points(double share, char out[FORMAT_MAX]);       /* -0.031 -> -3.1 */
const char *format_percent(double share, char out[FORMAT_MAX]);             /* 0.984 -> 98.4 */
const char *format_interval(double low, double high, char out[FORMAT_MAX]); /* 91.7-99.7, in per cent */
const char *format_p(double p, char out[FORMAT_MAX]);                       /* 0.625, <0.001 */
const char *format_duration(double seconds, char out[FORMAT_MAX]);          /* 4.2 s, 3:20, 1:02:03 */
/* "1 sample", "2 samples"; the plural is the noun with s. */
const char *format_noun(int64_t count, const char *noun, char *out, size_t cap);

#endif
