/* utf8.h: is this text UTF-8 (RFC 3629: no overlong forms, no surrogates, at most U+10FFFF)? Internal to proto/. */
#ifndef KVF_PROTO_UTF8_H
#define KVF_PROTO_UTF8_H

#include <stddef.h>

/* Bytes of the well-formed character that starts at `text` (1 to 4), 0 when there is none within `len`. */
size_t utf8_char_len(const char *text, size_t len);
/* Length of the longest well-formed prefix: equal to `len` for valid text. */
size_t utf8_valid_len(const char *text, size_t len);

#endif
