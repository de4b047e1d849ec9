#include "coordinator/client/plan.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Whether the piece of `length` bytes reads key=value, without a policy's name in front. */
static bool is_parameter(const char *piece, size_t length)
{
    const char *equals = memchr(piece, '=', length), *colon = memchr(piece, ':', length);

    return equals != NULL && (colon == NULL || colon > equals);
}

static char *list_join(const char *const *pieces)
{
    char *text = NULL;
    size_t size = 0;
    FILE *memory = open_memstream(&text, &size);

    if (memory == NULL) return NULL;
    for (int i = 0; pieces[i] != NULL; i++) fprintf(memory, "%s%s", i > 0 ? "," : "", pieces[i]);
    if (fclose(memory) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

static int policy_add(char *text, struct policy **list, int *count, struct kvf_err *err)
{
    struct policy parsed, *grown;
    int code = policy_parse(text, &parsed, err);

    if (code != KVF_OK) return code;
    for (int i = 0; i < *count; i++)
        if (strcmp((*list)[i].name, parsed.name) == 0)
            return kvf_fail(err, KVF_EINVAL, "--policy: '%s' is given twice", parsed.name);
    grown = realloc(*list, (size_t)(*count + 1) * sizeof *grown);
    if (grown == NULL) return kvf_fail(err, KVF_ENOMEM, "--policy: out of memory");
    *list = grown;
    grown[(*count)++] = parsed;
    return KVF_OK;
}

int policy_list_parse(const char *const *pieces, struct policy **out, int *count, struct kvf_err *err)
{
    char *text = list_join(pieces), *start;
    int code = KVF_OK;

    *out = NULL;
    *count = 0;
    if (text == NULL) return kvf_fail(err, KVF_ENOMEM, "--policy: out of memory");
    for (start = text; code == KVF_OK;) {
        char *end = strchrnul(start, ',');
        bool last;
        if (is_parameter(start, (size_t)(end - start))) {
            code =
                kvf_fail(err, KVF_EINVAL,
                         "--policy: '%.*s' belongs to no policy; parameters follow a colon: NAME:key=value,key=value",
                         (int)(end - start), start);
            break;
        }
        while (*end == ',' && memchr(start, ':', (size_t)(end - start)) != NULL) {
            char *next = strchrnul(end + 1, ',');
            if (!is_parameter(end + 1, (size_t)(next - end - 1))) break;
            end = next;
        }
        last = *end == '\0';
        *end = '\0';
        code = policy_add(start, out, count, err);
        start = end + 1;
        if (last) break;
    }
    free(text);
    if (code != KVF_OK) {
        free(*out);
        *out = NULL;
        *count = 0;
    }
    return code;
}

static int budgets_parse(const char *const *texts, int **out, int *count, struct kvf_err *err)
{
    int n = 0;

    while (texts[n] != NULL) n++;
    *out = calloc((size_t)n + 1, sizeof **out);
    if (*out == NULL) return kvf_fail(err, KVF_ENOMEM, "--budget: out of memory");
    for (*count = 0; *count < n; (*count)++) {
        char *end;
        long value;
        errno = 0;
        value = strtol(texts[*count], &end, 10);
        if (end == texts[*count] || *end != '\0' || errno != 0 || value < 1 || value > 1048576)
            return kvf_fail(err, KVF_EINVAL, "--budget: expected whole numbers of entries from 1 to 1048576, got '%s'",
                            texts[*count]);
        for (int i = 0; i < *count; i++)
            if ((*out)[i] == value) return kvf_fail(err, KVF_EINVAL, "--budget: %ld is given twice", value);
        (*out)[*count] = (int)value;
    }
    return KVF_OK;
}

int plan_make(const char *const *policies, const char *const *budgets, int interval_tokens, struct plan *out,
              struct kvf_err *err)
{
    static const char *const none[] = {NULL};
    struct policy *list = NULL;
    int *sizes = NULL, n_list = 0, n_sizes = 0, code;

    memset(out, 0, sizeof *out);
    if (policies == NULL || policies[0] == NULL)
        return kvf_fail(err, KVF_EINVAL,
                        "--policy is required: one or more policies, e.g. --policy full,rkv,reasonalloc");
    code = policy_list_parse(policies, &list, &n_list, err);
    if (code == KVF_OK) code = budgets_parse(budgets == NULL ? none : budgets, &sizes, &n_sizes, err);
    if (code != KVF_OK) goto done;
    out->cells = calloc((size_t)n_list * (size_t)(n_sizes + 1), sizeof *out->cells);
    if (out->cells == NULL) {
        code = kvf_fail(err, KVF_ENOMEM, "sweep: out of memory for %d policies x %d budgets", n_list, n_sizes);
        goto done;
    }
    for (int i = 0; i < n_list && code == KVF_OK; i++) {
        if (policy_needs_profile(&list[i])) out->needs_profile = true;
        if (list[i].scorer == SCORER_NONE) {
            out->cells[out->n_cells++] = (struct plan_cell){list[i], 0};
            continue;
        }
        if (n_sizes == 0)
            code = kvf_fail(err, KVF_EINVAL, "--budget is required for policy '%s', e.g. --budget 128,256,512",
                            list[i].name);
        for (int k = 0; k < n_sizes && code == KVF_OK; k++) {
            code = policy_check_budget(&list[i], sizes[k], interval_tokens, err);
            out->cells[out->n_cells++] = (struct plan_cell){list[i], sizes[k]};
        }
    }
    if (code == KVF_OK && out->n_cells > PLAN_MAX_CELLS)
        code = kvf_fail(err, KVF_EINVAL, "sweep: %d policies x %d budgets make %d cells, at most %d fit one job",
                        n_list, n_sizes, out->n_cells, PLAN_MAX_CELLS);
done:
    free(list);
    free(sizes);
    if (code != KVF_OK) plan_free(out);
    return code;
}

void plan_free(struct plan *plan)
{
    free(plan->cells);
    plan->cells = NULL;
    plan->n_cells = 0;
}
