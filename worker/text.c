/* text.c: see text.h. */
#include "worker/text.h"

#include <stdlib.h>
#include <string.h>

size_t text_valid_len(const char *text, size_t len)
{
    const unsigned char *bytes = (const unsigned char *)text;
    size_t at = 0;
    while (at < len) {
        unsigned char lead = bytes[at];
        int more = lead < 0x80 ? 0 : lead < 0xc2 ? -1 : lead < 0xe0 ? 1 : lead < 0xf0 ? 2 : lead < 0xf5 ? 3 : -1;
        if (more < 0 || at + (size_t)more >= len) return at;
        for (int k = 1; k <= more; k++)
            if ((bytes[at + (size_t)k] & 0xc0) != 0x80) return at;
        if (more > 1) {
            unsigned char second = bytes[at + 1];
            if ((lead == 0xe0 && second < 0xa0) || (lead == 0xed && second > 0x9f) || (lead == 0xf0 && second < 0x90) ||
                (lead == 0xf4 && second > 0x8f))
                return at;
        }
        at += (size_t)more + 1;
    }
    return len;
}

size_t text_cut(const char *text, size_t len, size_t max)
{
    if (len <= max) return len;
    while (max > 0 && ((unsigned char)text[max] & 0xc0) == 0x80) max--;
    return max;
}

char *text_repair(char *text)
{
    size_t len = strlen(text), good = text_valid_len(text, len);
    if (good == len) return text;
    char *fixed = malloc(len * 3 + 1); /* a replacement takes three bytes */
    if (fixed == NULL) {
        text[good] = 0;
        return text;
    }
    size_t from = 0, to = 0;
    while (from < len) {
        good = text_valid_len(text + from, len - from);
        memcpy(fixed + to, text + from, good);
        from += good;
        to += good;
        if (from < len) {
            memcpy(fixed + to, "\xef\xbf\xbd", 3);
            to += 3;
            from++;
        }
    }
    fixed[to] = 0;
    free(text);
    return fixed;
}
