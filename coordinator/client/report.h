/* report.h: the result of a sweep as a person reads it: the table with its notes, the list of failures, one sample. */
#ifndef KVF_REPORT_H
#define KVF_REPORT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include "coordinator/client/view.h"

extern const struct view_column report_cell_columns[];   /* v_cell */
extern const struct view_column report_sample_columns[]; /* v_sample without texts */
#define REPORT_CELL_KEYS 3                               /* leading columns that tell a row: mark, policy, budget */

/* Whether full cache is among the cells, so that the others can be held against it. */
bool report_has_full(const json_t *cells);
/* The table and, below it, what the columns mean, the job's figures, its errors, what was skipped. has_full: of all
 * cells of the job, while `cells` may be some of them. */
void report_table(const json_t *job, const json_t *cells, bool has_full, int width, FILE *out);
/* Head, figures, prompt, thinking and answer of one v_sample row. */
void report_sample(const json_t *sample, FILE *out);
/* What the command exits with for a job in this state (exit_code.h): a running one counts as done. */
int report_exit_code(const json_t *job);

#endif
