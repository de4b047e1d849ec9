/* row.c: see row.h. */
#include "worker/row.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "worker/text.h"

#define ERROR_BYTES 1023 /* the wire's limits */
#define TEXT_BYTES  524288
#define ENDS        8

struct row *row_new(int64_t fence, enum row_kind kind)
{
    struct row *row = calloc(1, sizeof *row);
    if (row == NULL) return NULL;
    row->kind = kind;
    row->fence = fence;
    rec_result_init(&row->rec);
    return row;
}

void row_free(struct row *row)
{
    if (row == NULL) return;
    free(row->text);
    free(row);
}

void rows_free(struct row *first)
{
    while (first != NULL) {
        struct row *next = first->next;
        row_free(first);
        first = next;
    }
}

void row_set_prompt(struct row *row, const int32_t *ids, int count)
{
    size_t at = 0;
    row->prompt_ids[0] = 0;
    for (int k = 0; k < count && at < sizeof row->prompt_ids; k++) {
        const char *gap = k == 0 ? "" : " ";
        if (count > 2 * ENDS && k == ENDS) {
            k = count - ENDS;
            gap = " ... ";
        }
        at += (size_t)snprintf(row->prompt_ids + at, sizeof row->prompt_ids - at, "%s%d", gap, ids[k]);
    }
    row->rec.prompt_ids = str_of(row->prompt_ids);
}

static int64_t measured(int64_t value)
{
    return value < 0 ? MSG_NULL_INT : value;
}

static double measured_real(double value)
{
    return isfinite(value) && value >= 0 ? value : NAN;
}

static void set_error(struct row *row, const char *line)
{
    snprintf(row->error, sizeof row->error, "%s", line);
    row->error[text_valid_len(row->error, strlen(row->error))] = 0;
    row->rec.error = str_of(row->error);
    if (row->rec.error.len > ERROR_BYTES)
        row->rec.error.len = (uint32_t)text_cut(row->error, strlen(row->error), ERROR_BYTES);
}

static void set_grade(struct row *row, const struct grade *grade)
{
    row->rec.grade = str_of(verdict_name(grade->verdict));
    row->rec.grade_reason = str_of(grade->reason);
    row->rec.grader = str_of(GRADE_NAME);
    if (grade->extracted != NULL) row->rec.extracted = (struct str){grade->extracted, (uint32_t)grade->extracted_len};
}

void row_fill(struct row *row, struct completion *completion, const struct row_facts *facts, const char *gold)
{
    struct rec_result *rec = &row->rec;
    row->text = completion->text == NULL ? NULL : text_repair(completion->text);
    completion->text = NULL;
    rec->finish = str_of(finish_reason_name(completion->finish));
    if (completion->finish == FINISH_ERROR) set_error(row, completion->error);
    if (row->text != NULL)
        rec->text = (struct str){row->text, (uint32_t)text_cut(row->text, strlen(row->text), TEXT_BYTES)};
    rec->prompt_tokens = measured(completion->prompt_tokens);
    rec->output_tokens = measured(completion->output_tokens);
    rec->thinking_tokens = measured(completion->thinking_tokens);
    rec->output_hash = (int64_t)completion->output_hash;
    rec->queue_us = measured(completion->queue_us);
    rec->ttft_us = measured(completion->ttft_us);
    rec->prefill_us = measured(completion->prefill_us);
    rec->decode_us = measured(completion->decode_share_us);
    rec->compaction_us = measured(completion->compaction_us);
    rec->total_us = measured(completion->total_us);
    rec->compactions = measured(completion->compactions);
    rec->evicted_entries = measured(completion->evicted_entries);
    rec->budget_achieved = measured_real(completion->budget_achieved);
    rec->weights_bytes = measured(facts->weights_bytes);
    rec->kv_live_mean_bytes = measured(completion->kv_live_mean_bytes);
    rec->kv_live_peak_bytes = measured(completion->kv_live_peak_bytes);
    rec->kv_reserved_bytes = measured(facts->kv_reserved_bytes);
    rec->workspace_bytes = measured(facts->workspace_bytes);
    rec->device_peak_bytes = measured(facts->device_peak_bytes);
    rec->batch_mean = measured_real(completion->batch_mean);
    rec->batch_max = measured(completion->batch_max);
    rec->min_margin = measured_real(completion->min_margin);
    struct grade grade = grade_text(row->text, completion->finish, gold);
    set_grade(row, &grade);
}

void row_fill_error(struct row *row, const char *line)
{
    struct rec_result old = row->rec;
    rec_result_init(&row->rec);
    row->rec.sample_id = old.sample_id;
    row->rec.attempt = old.attempt;
    row->rec.seed = old.seed;
    row->rec.finish = str_of(finish_reason_name(FINISH_ERROR));
    set_error(row, line);
    struct grade grade = grade_text(NULL, FINISH_ERROR, "");
    set_grade(row, &grade);
}
