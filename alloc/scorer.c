/* scorer.c: the table of scorers, one row each. */
#include "alloc/scorer.h"

#include <string.h>

/* clang-format off */
#define SCORERS(row) \
    row(none) \
    row(streaming) \
    row(snapkv) \
    row(rkv) \
    row(random) \
    row(h2o) \
    row(tova) \
    row(keydiff) \
    row(knorm) \
    row(expected_attention) \
    row(lava) \
    row(vatp) \
    row(critical_kv) \
    row(cake_score)
/* clang-format on */

#define DECLARED(name) extern const struct scorer scorer_##name;
SCORERS(DECLARED)
#define LISTED(name) &scorer_##name,
static const struct scorer *const table[] = {SCORERS(LISTED) NULL};

const struct scorer *scorer_at(int index)
{
    return index >= 0 && index < (int)(sizeof table / sizeof table[0]) ? table[index] : NULL;
}

int scorer_find(const char *name, int length)
{
    for (int i = 0; table[i] != NULL; i++)
        if ((int)strlen(table[i]->name) == length && strncmp(table[i]->name, name, (size_t)length) == 0) return i;
    return -1;
}
