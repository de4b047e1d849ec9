#include "proto/utf8.h"

#include <stdint.h>
#include <string.h>

static int is_tail(unsigned char byte)
{
    return (byte & 0xc0) == 0x80;
}

size_t utf8_char_len(const char *text, size_t len)
{
    const unsigned char *byte = (const unsigned char *)text;
    if (len == 0) return 0;
    if (byte[0] < 0x80) return 1;
    if (byte[0] < 0xc2) return 0;
    if (byte[0] < 0xe0) return len >= 2 && is_tail(byte[1]) ? 2 : 0;
    if (byte[0] < 0xf0) {
        if (len < 3 || !is_tail(byte[1]) || !is_tail(byte[2])) return 0;
        if (byte[0] == 0xe0 && byte[1] < 0xa0) return 0;
        if (byte[0] == 0xed && byte[1] > 0x9f) return 0;
        return 3;
    }
    if (byte[0] > 0xf4 || len < 4 || !is_tail(byte[1]) || !is_tail(byte[2]) || !is_tail(byte[3])) return 0;
    if (byte[0] == 0xf0 && byte[1] < 0x90) return 0;
    if (byte[0] == 0xf4 && byte[1] > 0x8f) return 0;
    return 4;
}

size_t utf8_valid_len(const char *text, size_t len)
{
    size_t at = 0;
    while (at < len) {
        /* Nearly all text here is ASCII: eight bytes a step. */
        uint64_t word;
        while (len - at >= sizeof word) {
            memcpy(&word, text + at, sizeof word);
            if (word & 0x8080808080808080u) break;
            at += sizeof word;
        }
        if (at == len) break;
        size_t step = utf8_char_len(text + at, len - at);
        if (step == 0) break;
        at += step;
    }
    return at;
}
