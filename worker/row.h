/* row.h: one finished sample on its way to the coordinator. Made with its lease, filled in by the engine's thread, then
 * owned by the network's thread. */
#ifndef KVF_WORKER_ROW_H
#define KVF_WORKER_ROW_H

#include <stdint.h>
#include "engine/engine.h"
#include "proto/message.h"
#include "worker/grading/grade.h"

enum row_kind {
    ROW_RESULT,
    ROW_RELEASED, /* no result: the rest of lease `fence` will not be done here */
};
struct row {
    struct row *next;
    enum row_kind kind;
    int64_t fence;
    struct rec_result rec; /* its texts point into this row */
    char *text;            /* malloc'd, or NULL */
    char error[KVF_ERR_MAX];
    char prompt_ids[256];
};
struct row *row_new(int64_t fence, enum row_kind kind); /* NULL without memory */
void row_free(struct row *row);
void rows_free(struct row *first); /* the whole list */

/* "1 5 7 ... 2 9": first and last eight ids, the evidence of what was really fed to the model. */
void row_set_prompt(struct row *row, const int32_t *ids, int count);

/* Process and model figures that go into every row. */
struct row_facts {
    int64_t weights_bytes, kv_reserved_bytes, workspace_bytes;
    int64_t device_peak_bytes; /* negative: not measured */
};
/* Fills in the result of a completion, grades it against `gold`, and takes over its text. */
void row_fill(struct row *row, struct completion *completion, const struct row_facts *facts, const char *gold);
/* The result of a sample that could not be run: finish "error". */
void row_fill_error(struct row *row, const char *line);

#endif
