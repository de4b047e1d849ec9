/* grade.h: whether an output answers its problem. Deterministic, bounded, no evaluation of what a model wrote.
 *
 * The answer is the last balanced \boxed{...} after the last </think>. Texts are compared after trimming; whole numbers
 * and decimals by value, of any length, unless the gold has a leading zero: then it is a digit string and must be the
 * same text. Grader "boxed-text/1"; a change of what it says is a new name. */
#ifndef KVF_GRADE_H
#define KVF_GRADE_H

#include <stddef.h>
#include "engine/engine.h"

#define GRADE_NAME          "boxed-text/1"
#define GRADE_EXTRACTED_MAX 4095 /* the wire's limit; a longer answer is cut at a character */

enum verdict { VERDICT_CORRECT, VERDICT_WRONG, VERDICT_UNANSWERED, VERDICT_TRUNCATED, VERDICT_ERROR };
const char *verdict_name(enum verdict verdict); /* "correct" ... */

struct grade {
    enum verdict verdict;
    /* exact, numeric, different; no_box, unclosed_box, empty_box, no_think_end (unanswered); length (truncated); error,
     * cancelled */
    const char *reason;
    const char
        *extracted; /* the answer as written, trimmed, into `text`: not NUL-terminated; NULL when there is none */
    size_t extracted_len;
};
/* text: NUL-terminated output, or NULL; gold: NUL-terminated. Static memory only. */
struct grade grade_text(const char *text, enum finish_reason finish, const char *gold);

#endif
