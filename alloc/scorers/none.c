/* none.c: the full cache: nothing is ever evicted, so nothing is ever scored. */
#include "alloc/scorer.h"

const struct scorer scorer_none = {
    .name = "none",
    .source = "full cache",
    .keys = "",
};
