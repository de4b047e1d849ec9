/* utf8.c: see utf8.h. */
#include "engine/tokenizer/utf8.h"

#include <string.h>
#include <utf8proc.h>

static const char replacement[] = "\xef\xbf\xbd";

int utf8_step(const char *text, size_t len, enum utf8_kind *kind)
{
    const unsigned char *s = (const unsigned char *)text;
    unsigned char low = 0x80, high = 0xbf;
    int need;
    if (s[0] < 0x80) {
        *kind = UTF8_CHARACTER;
        return 1;
    }
    if (s[0] >= 0xc2 && s[0] <= 0xdf) {
        need = 2;
    } else if (s[0] >= 0xe0 && s[0] <= 0xef) {
        need = 3;
        low = s[0] == 0xe0 ? 0xa0 : low;
        high = s[0] == 0xed ? 0x9f : high;
    } else if (s[0] >= 0xf0 && s[0] <= 0xf4) {
        need = 4;
        low = s[0] == 0xf0 ? 0x90 : low;
        high = s[0] == 0xf4 ? 0x8f : high;
    } else {
        *kind = UTF8_ILL_FORMED;
        return 1;
    }
    for (int i = 1; i < need; i++) {
        if ((size_t)i == len) {
            *kind = UTF8_INCOMPLETE;
            return i;
        }
        if (s[i] < low || s[i] > high) {
            *kind = UTF8_ILL_FORMED;
            return i;
        }
        low = 0x80;
        high = 0xbf;
    }
    *kind = UTF8_CHARACTER;
    return need;
}

int32_t utf8_code_point(const char *text, int len)
{
    const unsigned char *s = (const unsigned char *)text;
    switch (len) {
    case 1:
        return s[0];
    case 2:
        return (s[0] & 0x1f) << 6 | (s[1] & 0x3f);
    case 3:
        return (s[0] & 0x0f) << 12 | (s[1] & 0x3f) << 6 | (s[2] & 0x3f);
    default:
        return (s[0] & 0x07) << 18 | (s[1] & 0x3f) << 12 | (s[2] & 0x3f) << 6 | (s[3] & 0x3f);
    }
}

size_t utf8_repaired_size(const char *text, size_t len)
{
    size_t size = 0;
    for (size_t i = 0; i < len;) {
        enum utf8_kind kind;
        int step = utf8_step(text + i, len - i, &kind);
        size += kind == UTF8_CHARACTER ? (size_t)step : sizeof replacement - 1;
        i += (size_t)step;
    }
    return size;
}

void utf8_repair(const char *text, size_t len, char *out)
{
    for (size_t i = 0; i < len;) {
        enum utf8_kind kind;
        int step = utf8_step(text + i, len - i, &kind);
        size_t size = kind == UTF8_CHARACTER ? (size_t)step : sizeof replacement - 1;
        memcpy(out, kind == UTF8_CHARACTER ? text + i : replacement, size);
        out += size;
        i += (size_t)step;
    }
}

int utf8_is_space(int32_t c)
{
    return (c >= 0x09 && c <= 0x0d) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

int utf8_is_word(int32_t c)
{
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return 1;
    default:
        /* joiners, and the circled and squared letters that are symbols by category */
        return c == 0x200c || c == 0x200d || (c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) ||
               (c >= 0x1f150 && c <= 0x1f169) || (c >= 0x1f170 && c <= 0x1f189);
    }
}
