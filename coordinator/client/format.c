#include "coordinator/client/format.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *format_missing(char out[FORMAT_MAX])
{
    return strcpy(out, "-");
}

const char *format_bytes(double bytes, char out[FORMAT_MAX])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    size_t unit = 0;

    if (isnan(bytes)) return format_missing(out);
    /* 1023.95 would print as 1024.0: one unit up */
    for (; fabs(bytes) >= (unit == 0 ? 1024 : 1023.95) && unit + 1 < sizeof units / sizeof *units; unit++)
        bytes /= 1024;
    snprintf(out, FORMAT_MAX, "%.*f %s", unit == 0 ? 0 : 1, bytes, units[unit]);
    return out;
}

const char *format_count(double value, char out[FORMAT_MAX])
{
    char digits[FORMAT_MAX];
    size_t length, put = 0;

    if (isnan(value)) return format_missing(out);
    snprintf(digits, sizeof digits, "%.0f", fabs(value) < 1e15 ? fabs(value) : 1e15);
    length = strlen(digits);
    if (value < 0 && strcmp(digits, "0") != 0) out[put++] = '-';
    for (size_t i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0) out[put++] = ',';
        out[put++] = digits[i];
    }
    out[put] = '\0';
    return out;
}

const char *format_fixed(double value, int decimals, char out[FORMAT_MAX])
{
    if (isnan(value)) return format_missing(out);
    snprintf(out, FORMAT_MAX, "%.*f", decimals, value);
    return out;
}

const char *format_signed_points(double share, char out[FORMAT_MAX])
{
    if (isnan(share)) return format_missing(out);
    if (fabs(share * 100) < 0.05) return strcpy(out, "0.0");
    snprintf(out, FORMAT_MAX, "%+.1f", share * 100);
    return out;
}

const char *format_percent(double share, char out[FORMAT_MAX])
{
    return format_fixed(share * 100, 1, out);
}

const char *format_interval(double low, double high, char out[FORMAT_MAX])
{
    if (isnan(low) || isnan(high)) return format_missing(out);
    snprintf(out, FORMAT_MAX, "%.1f-%.1f", low * 100, high * 100);
    return out;
}

const char *format_p(double p, char out[FORMAT_MAX])
{
    if (isnan(p)) return format_missing(out);
    if (p < 0.001) return strcpy(out, "<0.001");
    return format_fixed(p, 3, out);
}

const char *format_duration(double seconds, char out[FORMAT_MAX])
{
    long whole;

    if (isnan(seconds)) return format_missing(out);
    if (seconds < 59.95) {
        snprintf(out, FORMAT_MAX, "%.1f s", seconds < 0 ? 0.0 : seconds);
        return out;
    }
    whole = seconds < 1e9 ? lround(seconds) : 1000000000;
    if (whole < 3600)
        snprintf(out, FORMAT_MAX, "%ld:%02ld", whole / 60, whole % 60);
    else
        snprintf(out, FORMAT_MAX, "%ld:%02ld:%02ld", whole / 3600, whole / 60 % 60, whole % 60);
    return out;
}

const char *format_noun(int64_t count, const char *noun, char *out, size_t cap)
{
    char digits[FORMAT_MAX];

    snprintf(out, cap, "%s %s%s", format_count((double)count, digits), noun, count == 1 ? "" : "s");
    return out;
}
