/* store_row.h: a result as a row of `results` and a row of `grades`, in the form that COPY takes.
 *
 * The columns come from the message table (proto/messages.def): each field of rec_result is a column of one of the two
 * tables, in front of them stand the keys.
 */
#ifndef KVF_STORE_ROW_H
#define KVF_STORE_ROW_H

#include <stdint.h>
#include "coordinator/copy.h"
#include "proto/message.h"

/* What the database says of the row's lease. */
struct row_lease {
    int64_t fence, job_id, run_id;
};
/* The two COPY statements, results first; malloc'd, NULL: out of memory. */
char *row_copy_sql(void);
void row_write_result(struct copy *copy, const struct row_lease *lease, int64_t cell_id,
                      const struct rec_result *result);
void row_write_grade(struct copy *copy, const struct row_lease *lease, const struct rec_result *result);

#endif
