/* lease.c: see lease.h. */
#include "worker/lease.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *str_copy(struct str s)
{
    char *text = malloc((size_t)s.len + 1);
    if (text == NULL) return NULL;
    if (s.len > 0) memcpy(text, s.text, s.len);
    text[s.len] = 0;
    return text;
}

static void str_put(struct str s, char *text, size_t cap)
{
    size_t len = s.len < cap ? s.len : cap - 1;
    if (len > 0) memcpy(text, s.text, len);
    text[len] = 0;
}

static int int_of(uint64_t value)
{
    return value > INT_MAX ? INT_MAX : (int)value;
}

static void cell_read(const struct rec_cell *from, struct lease_cell *to)
{
    char policy[POLICY_NAME_MAX];
    struct kvf_err why = {""};
    to->cell_id = from->cell_id;
    to->budget_tokens = int_of(from->budget_tokens);
    to->interval_tokens = int_of(from->interval_tokens);
    to->max_new_tokens = int_of(from->max_new_tokens);
    to->sampling.temperature = isnan(from->temperature) ? 0 : from->temperature;
    to->sampling.top_p = isnan(from->top_p) ? 1 : from->top_p;
    to->sampling.top_k = int_of(from->top_k);
    str_put(from->template_name, to->template_name, sizeof to->template_name);
    str_put(from->policy, policy, sizeof policy);
    if (policy_parse(policy, &to->policy, &why) != 0) snprintf(to->trouble, sizeof to->trouble, "%.500s", why.text);
}

static int profile_read(const struct msg_lease *message, struct lease *lease)
{
    if (message->profile.text == NULL) return 0;
    lease->profile = malloc(sizeof *lease->profile);
    if (lease->profile == NULL) return KVF_ENOMEM;
    struct kvf_err why = {""};
    int rc = profile_parse(message->profile.text, message->profile.len, lease->profile, &why);
    if (rc == 0)
        rc = profile_check(lease->profile, lease->model_hash, lease->profile->layers, lease->profile->kv_heads, &why);
    if (rc != 0) snprintf(lease->trouble, sizeof lease->trouble, "wave profile: %.480s", why.text);
    return 0;
}

static int sample_read(const struct rec_sample *from, const struct lease *lease, struct lease_sample *to)
{
    to->problem = str_copy(from->problem);
    to->answer = str_copy(from->answer);
    to->seed = from->seed;
    to->row = row_new(lease->fence, ROW_RESULT);
    if (to->problem == NULL || to->answer == NULL || to->row == NULL) return KVF_ENOMEM;
    to->row->rec.sample_id = from->sample_id;
    to->row->rec.attempt = from->attempt;
    to->row->rec.seed = from->seed;
    for (int k = 0; k < lease->n_cells && to->cell == NULL; k++)
        if (lease->cells[k].cell_id == from->cell_id) to->cell = &lease->cells[k];
    return 0;
}

int lease_new(const struct msg_lease *message, struct lease **out, struct kvf_err *err)
{
    struct lease *lease = calloc(1, sizeof *lease);
    if (lease == NULL) goto no_memory;
    lease->fence = (int64_t)message->fence;
    str_put(message->model_hash, lease->model_hash, sizeof lease->model_hash);
    lease->n_cells = (int)message->n_cells;
    lease->n_samples = (int)message->n_samples;
    lease->cells = calloc((size_t)lease->n_cells + 1, sizeof *lease->cells);
    lease->samples = calloc((size_t)lease->n_samples + 1, sizeof *lease->samples);
    lease->notice = row_new(lease->fence, ROW_RELEASED);
    if (lease->cells == NULL || lease->samples == NULL || lease->notice == NULL) goto no_memory;
    if (profile_read(message, lease) != 0) goto no_memory;
    for (int k = 0; k < lease->n_cells; k++) cell_read(&message->cells[k], &lease->cells[k]);
    for (int k = 0; k < lease->n_samples; k++)
        if (sample_read(&message->samples[k], lease, &lease->samples[k]) != 0) goto no_memory;
    *out = lease;
    return 0;
no_memory:
    lease_free(lease);
    return kvf_fail(err, KVF_ENOMEM, "lease %llu of %u samples: out of memory", (unsigned long long)message->fence,
                    message->n_samples);
}

void lease_free(struct lease *lease)
{
    if (lease == NULL) return;
    for (int k = 0; lease->samples != NULL && k < lease->n_samples; k++) {
        free(lease->samples[k].problem);
        free(lease->samples[k].answer);
        row_free(lease->samples[k].row);
    }
    row_free(lease->notice);
    free(lease->samples);
    free(lease->cells);
    free(lease->profile);
    free(lease);
}

int lease_count(const struct lease *lease, enum sample_state state)
{
    int count = 0;
    for (int k = 0; k < lease->n_samples; k++) count += lease->samples[k].state == state;
    return count;
}
