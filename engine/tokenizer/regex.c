/* regex.c: see regex.h. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "engine/tokenizer/regex.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

/* Backtracking of one match. A pre-tokenizer needs none to speak of; a hostile pattern ends here. */
#define MATCH_LIMIT     20000000
#define JIT_STACK_BYTES (8 << 20)

struct regex {
    pcre2_code *code;
};

struct regex_scratch {
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

/* Class contents for the escapes that mean something else in PCRE2. Oniguruma counts the digits and fractions of
 * Latin-1 as word characters, but none above. */
#define SPACE_ITEMS "\\t-\\r\\x{85}\\p{Z}"
#define WORD_ITEMS  "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}"

struct translation {
    char *text;
    size_t len, room;
};

static int text_add(struct translation *out, const char *text, size_t len)
{
    if (out->len + len + 1 > out->room) {
        size_t room = 2 * (out->len + len + 1);
        char *grown = realloc(out->text, room);
        if (grown == NULL) return KVF_ENOMEM;
        out->text = grown;
        out->room = room;
    }
    memcpy(out->text + out->len, text, len);
    out->len += len;
    out->text[out->len] = '\0';
    return KVF_OK;
}

/* What replaces the escape \c, NULL: it stays; *refused: it has no equal in PCRE2. */
static const char *escape_replacement(char c, int in_class, int *refused)
{
    *refused = strchr("hHRXKGQECNOy", c) != NULL || (in_class && c == 'W');
    switch (c) {
    case 'b':
        return in_class ? NULL
                        : "(?:(?<=[" WORD_ITEMS "])(?![" WORD_ITEMS "])|(?<![" WORD_ITEMS "])(?=[" WORD_ITEMS "]))";
    case 'B':
        return in_class ? NULL
                        : "(?:(?<=[" WORD_ITEMS "])(?=[" WORD_ITEMS "])|(?<![" WORD_ITEMS "])(?![" WORD_ITEMS "]))";
    case 's':
        return in_class ? SPACE_ITEMS : "[" SPACE_ITEMS "]";
    case 'S':
        return in_class ? NULL : "[^" SPACE_ITEMS "]";
    case 'w':
        return in_class ? WORD_ITEMS : "[" WORD_ITEMS "]";
    case 'W':
        return in_class ? NULL : "[^" WORD_ITEMS "]";
    case 'd':
        return "\\p{Nd}";
    case 'D':
        return "\\P{Nd}";
    default:
        return NULL;
    }
}

/* Whether the inline flags at "(?" change what . ^ $ or white space mean. */
static int flags_refused(const char *at)
{
    for (at += 2; (*at >= 'a' && *at <= 'z') || *at == '-'; at++)
        if (*at == 'm' || *at == 's' || *at == 'x') return 1;
    return 0;
}

static int pattern_translate(const char *pattern, const char *where, struct translation *out, struct kvf_err *err)
{
    int in_class = 0, rc = KVF_OK;
    for (const char *at = pattern; *at != '\0' && rc == KVF_OK;) {
        size_t take = 1;
        const char *instead = NULL, *refused = NULL;
        if (*at == '\\' && at[1] != '\0') {
            int no = 0;
            take = 2;
            instead = escape_replacement(at[1], in_class, &no);
            refused = no ? "an escape" : NULL;
        } else if (!in_class) {
            if (*at == '[') {
                in_class = 1;
                take += at[1] == '^';
                take += at[take] == ']';
            } else if (*at == '(' && at[1] == '?' && flags_refused(at)) {
                refused = "an inline flag";
            } else if (*at == '{' && at[1] == ',') {
                refused = "a repeat without a lower bound";
            }
        } else if (*at == ']') {
            in_class = 0;
        } else if (*at == '[') {
            const char *end = at[1] == ':' ? strstr(at, ":]") : NULL;
            if (end == NULL)
                refused = "a class in a class";
            else
                take = (size_t)(end - at) + 2;
        } else if (*at == '&' && at[1] == '&') {
            refused = "an intersection of classes";
        }
        if (refused != NULL)
            return kvf_fail(err, KVF_EUNSUPPORTED, "%s: %s at offset %td of the pattern is not supported: %.200s",
                            where, refused, at - pattern, pattern);
        rc = instead != NULL ? text_add(out, instead, strlen(instead)) : text_add(out, at, take);
        at += take;
    }
    return rc;
}

int regex_compile(const char *pattern, int literal, const char *where, struct regex **out, struct kvf_err *err)
{
    *out = NULL;
    struct translation translated = {0};
    int rc = text_add(&translated, "", 0);
    if (rc == KVF_OK)
        rc = literal ? text_add(&translated, pattern, strlen(pattern))
                     : pattern_translate(pattern, where, &translated, err);
    struct regex *regex = rc == KVF_OK ? calloc(1, sizeof *regex) : NULL;
    if (regex == NULL) {
        free(translated.text);
        return rc == KVF_OK || rc == KVF_ENOMEM ? kvf_fail(err, KVF_ENOMEM, "%s: out of memory", where) : rc;
    }
    uint32_t options = literal
                           ? PCRE2_UTF | PCRE2_LITERAL
                           : PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | PCRE2_MULTILINE | PCRE2_ALT_CIRCUMFLEX;
    int code = 0;
    PCRE2_SIZE offset = 0;
    regex->code = pcre2_compile((PCRE2_SPTR)translated.text, translated.len, options, &code, &offset, NULL);
    free(translated.text);
    if (regex->code == NULL) {
        char why[128];
        pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
        free(regex);
        return kvf_fail(err, KVF_EINVAL, "%s: the pattern does not compile: %s: %.200s", where, why, pattern);
    }
    /* Without JIT the interpreter matches the same. */
    (void)pcre2_jit_compile(regex->code, PCRE2_JIT_COMPLETE);
    *out = regex;
    return KVF_OK;
}

void regex_free(struct regex **regex)
{
    if (*regex == NULL) return;
    pcre2_code_free((*regex)->code);
    free(*regex);
    *regex = NULL;
}

struct regex_scratch *regex_scratch_new(void)
{
    struct regex_scratch *scratch = calloc(1, sizeof *scratch);
    if (scratch == NULL) return NULL;
    scratch->match = pcre2_match_data_create(8, NULL);
    scratch->context = pcre2_match_context_create(NULL);
    scratch->stack = pcre2_jit_stack_create(32 << 10, JIT_STACK_BYTES, NULL);
    if (scratch->match == NULL || scratch->context == NULL) {
        regex_scratch_free(&scratch);
        return NULL;
    }
    pcre2_set_match_limit(scratch->context, MATCH_LIMIT);
    if (scratch->stack != NULL) pcre2_jit_stack_assign(scratch->context, NULL, scratch->stack);
    return scratch;
}

void regex_scratch_free(struct regex_scratch **scratch)
{
    if (*scratch == NULL) return;
    pcre2_match_data_free((*scratch)->match);
    pcre2_match_context_free((*scratch)->context);
    pcre2_jit_stack_free((*scratch)->stack);
    free(*scratch);
    *scratch = NULL;
}

int regex_match(const struct regex *regex, struct regex_scratch *scratch, const char *text, size_t len, size_t from,
                size_t *start, size_t *end, struct kvf_err *err)
{
    /* The check of the whole subject at every match would be quadratic: the caller has made it well formed. */
    int rc =
        pcre2_match(regex->code, (PCRE2_SPTR)text, len, from, PCRE2_NO_UTF_CHECK, scratch->match, scratch->context);
    if (rc == PCRE2_ERROR_NOMATCH) return 0;
    if (rc < 0) {
        char why[128];
        pcre2_get_error_message(rc, (PCRE2_UCHAR *)why, sizeof why);
        return kvf_fail(err, KVF_EUNSUPPORTED, "text: the pre-tokenizer's pattern gave up at byte %zu: %s", from, why);
    }
    const PCRE2_SIZE *place = pcre2_get_ovector_pointer(scratch->match);
    *start = place[0];
    *end = place[1];
    return 1;
}
