/* grade.c: extraction of an answer and its comparison with the gold. See grade.h. */
#include "worker/grading/grade.h"
#include "worker/text.h"

#include <stdbool.h>
#include <string.h>

struct span {
    const char *at;
    size_t len;
};

const char *verdict_name(enum verdict verdict)
{
    static const char *const names[] = {"correct", "wrong", "unanswered", "truncated", "error"};
    return names[verdict];
}

/* ---- extraction ---- */

/* The last place before `end` where `word` begins in text; NULL when there is none. Backwards: a looping model writes
 * a word a hundred thousand times. */
static const char *last_of(const char *text, const char *end, const char *word)
{
    size_t len = strlen(word);
    if ((size_t)(end - text) < len) return NULL;
    for (const char *at = end - len;; at--) {
        if (*at == word[0] && memcmp(at, word, len) == 0) return at;
        if (at == text) return NULL;
    }
}

/* What the braces at `open` enclose; false when they never close. A backslash takes the next byte with it: \{ and \}
 * are characters, not braces. */
static bool braces_read(const char *open, struct span *out)
{
    int depth = 0;
    for (const char *at = open; *at != 0; at++) {
        if (*at == '\\' && at[1] != 0) {
            at++;
        } else if (*at == '{') {
            depth++;
        } else if (*at == '}' && --depth == 0) {
            *out = (struct span){open + 1, (size_t)(at - open - 1)};
            return true;
        }
    }
    return false;
}

enum box { BOX_NONE, BOX_OPEN, BOX_FOUND };

/* The last box decides, even when it never closes: an earlier one was given up by whoever began it. The bare word in
 * prose, without a brace, is no box. */
static enum box box_last(const char *text, struct span *out)
{
    static const char word[] = "boxed";
    const char *end = text + strlen(text), *at;
    while ((at = last_of(text, end, word)) != NULL) {
        const char *open = at + sizeof word - 1;
        end = at;
        const char *slash = at > text && at[-1] == 'f' ? at - 1 : at; /* \fboxed */
        if (slash == text || slash[-1] != '\\') continue;
        open += strspn(open, " ");
        if (*open == '{') return braces_read(open, out) ? BOX_FOUND : BOX_OPEN;
    }
    return BOX_NONE;
}

/* ---- comparison ---- */

static bool space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static struct span trim(struct span s)
{
    while (s.len > 0 && space(s.at[0])) s.at++, s.len--;
    while (s.len > 0 && space(s.at[s.len - 1])) s.len--;
    return s;
}

/* Outer spaces, and dollar signs that come in a pair around the whole. */
static struct span strip(struct span s)
{
    s = trim(s);
    while (s.len >= 2 && s.at[0] == '$' && s.at[s.len - 1] == '$') s = trim((struct span){s.at + 1, s.len - 2});
    return s;
}

static bool digit(char c)
{
    return c >= '0' && c <= '9';
}

/* A number as text: sign, whole part without leading zeros, fraction without trailing zeros. */
struct number {
    bool negative, leading_zero;
    struct span whole, fraction;
};

static bool number_read(struct span s, struct number *out)
{
    size_t at = 0;
    memset(out, 0, sizeof *out);
    if (s.len > 0 && (s.at[0] == '-' || s.at[0] == '+')) out->negative = s.at[at++] == '-';
    size_t begin = at;
    while (at < s.len && digit(s.at[at])) at++;
    out->whole = (struct span){s.at + begin, at - begin};
    if (at < s.len && s.at[at] == '.') {
        begin = ++at;
        while (at < s.len && digit(s.at[at])) at++;
        out->fraction = (struct span){s.at + begin, at - begin};
    }
    if (at != s.len || out->whole.len + out->fraction.len == 0) return false;
    out->leading_zero = out->whole.len > 1 && out->whole.at[0] == '0';
    while (out->whole.len > 0 && out->whole.at[0] == '0') out->whole.at++, out->whole.len--;
    while (out->fraction.len > 0 && out->fraction.at[out->fraction.len - 1] == '0') out->fraction.len--;
    if (out->whole.len + out->fraction.len == 0) out->negative = false;
    return true;
}

static bool span_equal(struct span a, struct span b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.at, b.at, a.len) == 0);
}

static bool number_equal(const struct number *a, const struct number *b)
{
    return a->negative == b->negative && span_equal(a->whole, b->whole) && span_equal(a->fraction, b->fraction);
}

/* ---- the grade ---- */

static struct grade grade_of(enum verdict verdict, const char *reason)
{
    return (struct grade){.verdict = verdict, .reason = reason};
}

struct grade grade_text(const char *text, enum finish_reason finish, const char *gold)
{
    static const char tag[] = "</think>";
    if (finish == FINISH_ERROR) return grade_of(VERDICT_ERROR, "error");
    if (finish == FINISH_CANCELLED) return grade_of(VERDICT_ERROR, "cancelled");
    const char *end = text == NULL ? NULL : last_of(text, text + strlen(text), tag);
    if (end == NULL)
        return finish == FINISH_LENGTH ? grade_of(VERDICT_TRUNCATED, "length")
                                       : grade_of(VERDICT_UNANSWERED, "no_think_end");
    struct span box;
    switch (box_last(end + sizeof tag - 1, &box)) {
    case BOX_NONE:
        if (finish == FINISH_LENGTH) return grade_of(VERDICT_TRUNCATED, "length");
        return grade_of(VERDICT_UNANSWERED, "no_box");
    case BOX_OPEN:
        if (finish == FINISH_LENGTH) return grade_of(VERDICT_TRUNCATED, "length");
        return grade_of(VERDICT_UNANSWERED, "unclosed_box");
    case BOX_FOUND:
        break;
    }
    struct span answer = strip(box), wanted = strip((struct span){gold, strlen(gold)});
    if (answer.len == 0) return grade_of(VERDICT_UNANSWERED, "empty_box");
    struct grade grade = grade_of(VERDICT_WRONG, "different");
    struct number a, w;
    if (span_equal(answer, wanted)) {
        grade = grade_of(VERDICT_CORRECT, "exact");
    } else if (number_read(wanted, &w) && !w.leading_zero && number_read(answer, &a) && number_equal(&a, &w)) {
        grade = grade_of(VERDICT_CORRECT, "numeric");
    }
    grade.extracted = answer.at;
    grade.extracted_len = text_cut(answer.at, answer.len, GRADE_EXTRACTED_MAX);
    return grade;
}
