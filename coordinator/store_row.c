#include "coordinator/store_row.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "coordinator/store.h"

/* ---- columns of a result, from the message table ---- */

enum field_kind { FIELD_INT, FIELD_REAL, FIELD_TEXT, FIELD_NUMERIC };
struct result_field {
    const char *name;
    enum field_kind kind;
    size_t place;
};
#define FIELD_U(key, field, min, max)                                                                                  \
    {#field, (uint64_t)(max) > INT64_MAX ? FIELD_NUMERIC : FIELD_INT, offsetof(struct rec_result, field)},
#define FIELD_M(key, field)      {#field, FIELD_INT, offsetof(struct rec_result, field)},
#define FIELD_F(key, field)      {#field, FIELD_REAL, offsetof(struct rec_result, field)},
#define FIELD_S(key, field, max) {#field, FIELD_TEXT, offsetof(struct rec_result, field)},
#define FIELD_NONE(...)
static const struct result_field fields[] = {
    REC_RESULT(FIELD_U, FIELD_NONE, FIELD_M, FIELD_F, FIELD_S, FIELD_S, FIELD_NONE, FIELD_NONE)};
#define N_FIELDS ((int)(sizeof fields / sizeof *fields))

/* By their place, because a row asks for each of its fields. Columns of type integer: */
#define PLACE(field) offsetof(struct rec_result, field)
static const size_t narrow[] = {PLACE(attempt),         PLACE(prompt_tokens), PLACE(output_tokens),
                                PLACE(thinking_tokens), PLACE(compactions),   PLACE(batch_max)};
/* Fields that belong to the table of grades, and its columns; results has a column for each other one. */
static const struct {
    size_t place;
    const char *column;
} graded[] = {{PLACE(grade), "verdict"},
              {PLACE(grade_reason), "reason"},
              {PLACE(extracted), "extracted"},
              {PLACE(grader), "grader"}};

static bool is_narrow(const struct result_field *field)
{
    for (size_t i = 0; i < sizeof narrow / sizeof *narrow; i++)
        if (field->place == narrow[i]) return true;
    return false;
}

static const char *grade_column(const struct result_field *field)
{
    for (size_t i = 0; i < sizeof graded / sizeof *graded; i++)
        if (field->place == graded[i].place) return graded[i].column;
    return NULL;
}

/* ---- one row, before it meets the tables ---- */

static bool str_in(struct str value, const char *const *names)
{
    for (; *names != NULL; names++)
        if (value.len == strlen(*names) && memcmp(value.text, *names, value.len) == 0) return true;
    return false;
}

/* No time and no size comes near; sums over many rows stay within bigint. */
#define MEASURE_MAX (INT64_C(1) << 50)

int store_result_check(const struct rec_result *result, struct kvf_err *err)
{
    static const char *const finishes[] = {"stop", "stop_string", "length", "loop", "oom", "cancelled", "error", NULL};
    static const char *const grades[] = {"correct", "wrong", "unanswered", "truncated", "error", NULL};

    if (!str_in(result->finish, finishes))
        return kvf_fail(err, KVF_EINVAL, "sample %" PRIu64 ": unknown finish '%.*s'", result->sample_id,
                        (int)result->finish.len, result->finish.text);
    if (!str_in(result->grade, grades))
        return kvf_fail(err, KVF_EINVAL, "sample %" PRIu64 ": unknown grade '%.*s'", result->sample_id,
                        (int)result->grade.len, result->grade.text);
    for (int i = 0; i < N_FIELDS; i++) {
        int64_t value, most;
        if (fields[i].kind == FIELD_REAL) {
            double real = *(const double *)((const char *)result + fields[i].place);
            if (!isnan(real) && fabs(real) > (double)MEASURE_MAX)
                return kvf_fail(err, KVF_EINVAL, "sample %" PRIu64 ": %s: expected at most %g, got %g",
                                result->sample_id, fields[i].name, (double)MEASURE_MAX, real);
        }
        if (fields[i].kind != FIELD_INT || fields[i].place == PLACE(output_hash)) continue;
        value = *(const int64_t *)((const char *)result + fields[i].place);
        most = is_narrow(&fields[i]) ? INT32_MAX : MEASURE_MAX;
        if (value != MSG_NULL_INT && (value < 0 || value > most))
            return kvf_fail(err, KVF_EINVAL, "sample %" PRIu64 ": %s: expected 0 to %" PRId64 ", got %" PRId64,
                            result->sample_id, fields[i].name, most, value);
    }
    return KVF_OK;
}

/* ---- the row ---- */

/* What stands in front of the message's fields in a row of each table. */
enum { RESULT_KEYS = 4, GRADE_KEYS = 2, N_GRADED = sizeof graded / sizeof *graded };

char *row_copy_sql(void)
{
    char *text = NULL;
    size_t len = 0;
    FILE *sql = open_memstream(&text, &len);

    if (sql == NULL) return NULL;
    fprintf(sql, "COPY results (job_id, run_id, fence, cell_id");
    for (int i = 0; i < N_FIELDS; i++)
        if (grade_column(&fields[i]) == NULL) fprintf(sql, ", %s", fields[i].name);
    fprintf(sql, ") FROM STDIN (FORMAT binary);COPY grades (job_id, sample_id");
    for (int i = 0; i < N_FIELDS; i++)
        if (grade_column(&fields[i]) != NULL) fprintf(sql, ", %s", grade_column(&fields[i]));
    fprintf(sql, ") FROM STDIN (FORMAT binary);");
    if (fclose(sql) == 0) return text;
    free(text);
    return NULL;
}

static void field_write(struct copy *copy, const struct result_field *field, const struct rec_result *result)
{
    const void *value = (const char *)result + field->place;

    switch (field->kind) {
    case FIELD_INT:
        if (is_narrow(field))
            copy_narrow(copy, *(const int64_t *)value);
        else
            copy_int(copy, *(const int64_t *)value);
        break;
    case FIELD_REAL:
        copy_real(copy, *(const double *)value);
        break;
    case FIELD_TEXT:
        copy_text(copy, *(const struct str *)value);
        break;
    case FIELD_NUMERIC:
        copy_numeric(copy, *(const uint64_t *)value);
        break;
    }
}

void row_write_result(struct copy *copy, const struct row_lease *lease, int64_t cell_id,
                      const struct rec_result *result)
{
    copy_row(copy, RESULT_KEYS + N_FIELDS - N_GRADED);
    copy_int(copy, lease->job_id);
    copy_int(copy, lease->run_id);
    copy_int(copy, lease->fence);
    copy_int(copy, cell_id);
    for (int i = 0; i < N_FIELDS; i++)
        if (grade_column(&fields[i]) == NULL) field_write(copy, &fields[i], result);
}

void row_write_grade(struct copy *copy, const struct row_lease *lease, const struct rec_result *result)
{
    copy_row(copy, GRADE_KEYS + N_GRADED);
    copy_int(copy, lease->job_id);
    copy_int(copy, (int64_t)result->sample_id);
    for (int i = 0; i < N_FIELDS; i++)
        if (grade_column(&fields[i]) != NULL) field_write(copy, &fields[i], result);
}
