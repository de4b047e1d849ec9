/* utf8.h: well-formed and ill-formed UTF-8. Internal to engine/. */
#ifndef KVF_UTF8_H
#define KVF_UTF8_H

#include <stddef.h>
#include <stdint.h>

enum utf8_kind {
    UTF8_CHARACTER,  /* a whole character */
    UTF8_ILL_FORMED, /* the longest part that no character begins with (Unicode 15, 3.9, table 3-7) */
    UTF8_INCOMPLETE, /* the text ends inside a character */
};

/* Length in bytes of what text[len > 0] begins with, and its kind. */
int utf8_step(const char *text, size_t len, enum utf8_kind *kind);

/* Code point of a whole character. */
int32_t utf8_code_point(const char *text, int len);

/* Bytes that text[len] takes once each ill-formed part is U+FFFD; equal to len when there is none. */
size_t utf8_repaired_size(const char *text, size_t len);
/* Writes those bytes. */
void utf8_repair(const char *text, size_t len, char *out);

/* Property White_Space. */
int utf8_is_space(int32_t code_point);
/* What a word consists of: properties Alphabetic and Join_Control, marks, decimal digits, connectors. */
int utf8_is_word(int32_t code_point);

#endif
