#include "coordinator/client/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "coordinator/client/exit_code.h"
#include "coordinator/client/format.h"
#include "coordinator/client/progress.h"
#include "coordinator/client/table.h"

const struct view_column report_cell_columns[] = {
    {"pareto", "", VIEW_MARK, NULL, false},
    {"policy", "policy", VIEW_TEXT, NULL, false},
    {"budget_tokens", "budget", VIEW_ID, NULL, false},
    {"samples", "samples", VIEW_COUNT, NULL, false},
    {"accuracy", "accuracy\n%", VIEW_PERCENT, NULL, false},
    {"accuracy_low", "95 %\ninterval", VIEW_INTERVAL, "accuracy_high", false},
    {"diff_full", "vs full\npoints", VIEW_POINTS, NULL, false},
    {"mcnemar_p", "McNemar\np", VIEW_P, NULL, false},
    {"unanswered", "un-\nanswered", VIEW_COUNT, NULL, false},
    {"truncated", "trun-\ncated", VIEW_COUNT, NULL, false},
    {"wrong", "wrong", VIEW_COUNT, NULL, false},
    {"errors", "errors", VIEW_COUNT, NULL, true},
    {"mean_output_tokens", "output\ntokens", VIEW_FIXED, NULL, false},
    {"kv_live_mean_bytes", "KV mean", VIEW_BYTES, NULL, false},
    {"kv_live_peak_bytes", "KV peak", VIEW_BYTES, NULL, false},
    {"kv_ratio", "KV to\nfull", VIEW_RATIO, NULL, false},
    {"decode_tokens_per_s", "decode\ntok/s", VIEW_COUNT, NULL, false},
    {"e2e_tokens_per_s", "end to end\ntok/s", VIEW_COUNT, NULL, false},
    {"compactions_mean", "com-\npactions", VIEW_FIXED, NULL, false},
    {"evicted_mean", "evicted\nentries", VIEW_COUNT, NULL, false},
    {"correct", NULL, VIEW_HIDDEN, NULL, false},
    {"samples_total", NULL, VIEW_HIDDEN, NULL, false},
    {"diff_pairs", NULL, VIEW_HIDDEN, NULL, false},
    {"diff_lost", NULL, VIEW_HIDDEN, NULL, false},
    {"diff_gained", NULL, VIEW_HIDDEN, NULL, false},
    {"interval_tokens", NULL, VIEW_HIDDEN, NULL, false},
    {"batch_mean", NULL, VIEW_HIDDEN, NULL, false},
    {"kernel_sets", NULL, VIEW_HIDDEN, NULL, false},
    {"model_name", NULL, VIEW_HIDDEN, NULL, false},
    {"dataset_name", NULL, VIEW_HIDDEN, NULL, false},
    {"job_id", NULL, VIEW_HIDDEN, NULL, false},
    {"cell_id", NULL, VIEW_HIDDEN, NULL, false},
    {"ordinal", NULL, VIEW_HIDDEN, NULL, false},
    {NULL, NULL, VIEW_HIDDEN, NULL, false},
};

const struct view_column report_sample_columns[] = {
    {"sample_id", "sample", VIEW_ID, NULL, false},
    {"policy", "policy", VIEW_TEXT, NULL, false},
    {"budget_tokens", "budget", VIEW_ID, NULL, false},
    {"problem_name", "problem", VIEW_SHORT, NULL, false},
    {"repeat", "repeat", VIEW_ID, NULL, true},
    {"verdict", "verdict", VIEW_TEXT, NULL, false},
    {"reason", "reason", VIEW_SHORT, NULL, true},
    {"finish", "finish", VIEW_TEXT, NULL, false},
    {"answer", "expected", VIEW_SHORT, NULL, false},
    {"extracted", "extracted", VIEW_SHORT, NULL, false},
    {"output_tokens", "output\ntokens", VIEW_COUNT, NULL, false},
    {"thinking_tokens", "thinking\ntokens", VIEW_COUNT, NULL, false},
    {"evicted_entries", "evicted\nentries", VIEW_COUNT, NULL, false},
    {"error", "error", VIEW_SHORT, NULL, true},
    {"job_id", NULL, VIEW_HIDDEN, NULL, false},
    {"cell_id", NULL, VIEW_HIDDEN, NULL, false},
    {"problem_no", NULL, VIEW_HIDDEN, NULL, false},
    {"interval_tokens", NULL, VIEW_HIDDEN, NULL, false},
    {"temperature", NULL, VIEW_HIDDEN, NULL, false},
    {"top_p", NULL, VIEW_HIDDEN, NULL, false},
    {"top_k", NULL, VIEW_HIDDEN, NULL, false},
    {"seed", NULL, VIEW_HIDDEN, NULL, false},
    {"prompt_tokens", NULL, VIEW_HIDDEN, NULL, false},
    {"output_hash", NULL, VIEW_HIDDEN, NULL, false},
    {"prompt_ids", NULL, VIEW_HIDDEN, NULL, false},
    {"min_margin", NULL, VIEW_HIDDEN, NULL, false},
    {"grader", NULL, VIEW_HIDDEN, NULL, false},
    {"compactions", NULL, VIEW_HIDDEN, NULL, false},
    {"budget_achieved", NULL, VIEW_HIDDEN, NULL, false},
    {"kv_live_mean_bytes", NULL, VIEW_HIDDEN, NULL, false},
    {"kv_live_peak_bytes", NULL, VIEW_HIDDEN, NULL, false},
    {"kv_reserved_bytes", NULL, VIEW_HIDDEN, NULL, false},
    {"weights_bytes", NULL, VIEW_HIDDEN, NULL, false},
    {"workspace_bytes", NULL, VIEW_HIDDEN, NULL, false},
    {"device_peak_bytes", NULL, VIEW_HIDDEN, NULL, false},
    {"batch_mean", NULL, VIEW_HIDDEN, NULL, false},
    {"batch_max", NULL, VIEW_HIDDEN, NULL, false},
    {"queue_us", NULL, VIEW_HIDDEN, NULL, false},
    {"ttft_us", NULL, VIEW_HIDDEN, NULL, false},
    {"prefill_us", NULL, VIEW_HIDDEN, NULL, false},
    {"decode_us", NULL, VIEW_HIDDEN, NULL, false},
    {"compaction_us", NULL, VIEW_HIDDEN, NULL, false},
    {"total_us", NULL, VIEW_HIDDEN, NULL, false},
    {"attempt", NULL, VIEW_HIDDEN, NULL, false},
    {"fence", NULL, VIEW_HIDDEN, NULL, false},
    {"committed_at", NULL, VIEW_HIDDEN, NULL, false},
    {"run_id", NULL, VIEW_HIDDEN, NULL, false},
    {"worker", NULL, VIEW_HIDDEN, NULL, false},
    {"kernel_set", NULL, VIEW_HIDDEN, NULL, false},
    {"revision", NULL, VIEW_HIDDEN, NULL, false},
    {NULL, NULL, VIEW_HIDDEN, NULL, false},
};

static const char *text_of(const json_t *row, const char *key)
{
    const char *text = view_string(row, key);

    return text == NULL ? "-" : text;
}

static void job_print(const json_t *job, FILE *out)
{
    char a[FORMAT_MAX], b[FORMAT_MAX], c[FORMAT_MAX];
    const char *state = text_of(job, "state");
    double done = view_number(job, "done"), total = view_number(job, "n_samples"),
           skipped = view_number(job, "skipped_lines");
    double errors = view_number(job, "errors");
    bool ended = state_ended(state);

    fprintf(out, "job %.0f: %s, ", view_number(job, "job_id"), state);
    if (done < total)
        fprintf(out, "%s of %s%s", format_count(done, a), format_noun((int64_t)total, "sample", b, sizeof b),
                ended ? "" : " so far");
    else
        fprintf(out, "%s", format_noun((int64_t)done, "sample", a, sizeof a));
    if (ended && !isnan(view_number(job, "wall_s")))
        fprintf(out, " in %s", format_duration(view_number(job, "wall_s"), a));
    if (ended && view_number(job, "tokens_per_s") > 0)
        fprintf(out, "; the whole fleet: %s emitted tokens, %s tok/s", format_count(view_number(job, "tokens"), b),
                format_count(view_number(job, "tokens_per_s"), c));
    fputc('\n', out);
    if (errors > 0) {
        fprintf(out, "errors: %s of them; most often (%s): ", format_count(errors, a),
                format_noun((int64_t)view_number(job, "top_error_count"), "time", b, sizeof b));
        text_print(text_of(job, "top_error"), false, out);
        fputc('\n', out);
    }
    if (skipped > 0)
        fprintf(out, "skipped: %s of %s left out, as --skip-bad-lines says\n",
                format_noun((int64_t)skipped, "bad line", a, sizeof a), text_of(job, "dataset_name"));
}

/* Samples of two kernel sets in one table: another KV type has other bytes, another set may round an answer away. */
static void kernel_sets_print(const json_t *cells, FILE *out)
{
    json_t *sets = json_object(), *cell;
    const char *name, *before = "";
    void *next;
    size_t i;

    json_array_foreach(cells, i, cell)
    {
        const char *list = view_string(cell, "kernel_sets");
        for (size_t len; list != NULL && *list != '\0'; list += len + (list[len] == ',')) {
            len = strcspn(list, ",");
            json_object_setn_new(sets, list, len, json_true());
        }
    }
    if (json_object_size(sets) > 1) {
        fputs("more than one kernel set ran (", out);
        json_object_foreach_safe(sets, next, name, cell)
        {
            fprintf(out, "%s", before);
            text_print(name, false, out);
            before = ", ";
        }
        fputs("): KV bytes and tok/s mix theirs, and answers may differ.\n", out);
    }
    json_decref(sets);
}

bool report_has_full(const json_t *cells)
{
    const json_t *cell;
    size_t i;

    json_array_foreach(cells, i, cell)
    {
        if (strcmp(text_of(cell, "policy"), "full") == 0) return true;
    }
    return false;
}

void report_table(const json_t *job, const json_t *cells, bool has_full, int width, FILE *out)
{
    view_table(report_cell_columns, cells, width, REPORT_CELL_KEYS, out);
    fputs("\n* Pareto front: no other cell is as accurate with less KV memory, or better with as much.\n"
          "accuracy: of all but errors, Wilson interval. vs full, p: on the same samples, exact McNemar.\n"
          "KV: bytes in use a sample, mean over its steps and peak. tok/s: emitted by one worker in\n"
          "the time of this cell's own work, decode alone and with prefill and compaction. tokens,\n"
          "compactions, evicted: mean a sample.\n",
          out);
    if (!has_full) fputs("vs full, p, KV to full: - as the job has no cell of policy full to compare with.\n", out);
    kernel_sets_print(cells, out);
    job_print(job, out);
}

static void figure_print(const json_t *row, const char *label, const char *key, enum view_kind kind, FILE *out)
{
    struct view_column column = {key, label, kind, NULL, false};
    char text[512];

    fprintf(out, "%-18s ", label);
    text_print(view_format(&column, row, text, sizeof text), false, out);
    fputc('\n', out);
}

static void time_print(const json_t *row, const char *label, const char *key, FILE *out)
{
    double us = view_number(row, key);

    if (isnan(us)) return;
    fprintf(out, "%-18s %.3f s\n", label, us / 1e6);
}

static void section_print(const char *title, const char *text, size_t length, FILE *out)
{
    char *copy;

    fprintf(out, "\n--- %s\n", title);
    while (length > 0 && (text[0] == '\n' || text[0] == ' ')) text++, length--;
    while (length > 0 && (text[length - 1] == '\n' || text[length - 1] == ' ')) length--;
    copy = strndup(text, length);
    if (copy == NULL) return;
    text_print(copy[0] == '\0' ? "(nothing)" : copy, true, out);
    fputc('\n', out);
    free(copy);
}

void report_sample(const json_t *row, FILE *out)
{
    static const char open_tag[] = "<think>", close_tag[] = "</think>";
    const char *text = view_string(row, "text"), *problem = view_string(row, "problem"), *close = NULL;
    char budget[FORMAT_MAX];

    fprintf(out, "job %.0f, sample %.0f: ", view_number(row, "job_id"), view_number(row, "sample_id"));
    text_print(text_of(row, "problem_name"), false, out);
    fprintf(out, ", repeat %.0f, %s", view_number(row, "repeat"), text_of(row, "policy"));
    if (!isnan(view_number(row, "budget_tokens")))
        fprintf(out, ", budget %s", format_fixed(view_number(row, "budget_tokens"), 0, budget));
    fputs("\n\n", out);
    figure_print(row, "verdict", "verdict", VIEW_TEXT, out);
    if (view_string(row, "reason") != NULL) figure_print(row, "reason", "reason", VIEW_TEXT, out);
    figure_print(row, "finish", "finish", VIEW_TEXT, out);
    if (view_string(row, "error") != NULL) figure_print(row, "error", "error", VIEW_TEXT, out);
    figure_print(row, "expected", "answer", VIEW_TEXT, out);
    figure_print(row, "extracted", "extracted", VIEW_TEXT, out);
    figure_print(row, "grader", "grader", VIEW_TEXT, out);
    figure_print(row, "prompt tokens", "prompt_tokens", VIEW_COUNT, out);
    figure_print(row, "output tokens", "output_tokens", VIEW_COUNT, out);
    figure_print(row, "thinking tokens", "thinking_tokens", VIEW_COUNT, out);
    figure_print(row, "compactions", "compactions", VIEW_COUNT, out);
    figure_print(row, "evicted entries", "evicted_entries", VIEW_COUNT, out);
    figure_print(row, "budget achieved", "budget_achieved", VIEW_FIXED, out);
    figure_print(row, "KV mean", "kv_live_mean_bytes", VIEW_BYTES, out);
    figure_print(row, "KV peak", "kv_live_peak_bytes", VIEW_BYTES, out);
    time_print(row, "first token after", "ttft_us", out);
    time_print(row, "prefill", "prefill_us", out);
    time_print(row, "decode", "decode_us", out);
    time_print(row, "compaction", "compaction_us", out);
    time_print(row, "total", "total_us", out);
    figure_print(row, "batch", "batch_mean", VIEW_FIXED, out);
    figure_print(row, "attempt", "attempt", VIEW_ID, out);
    figure_print(row, "worker", "worker", VIEW_TEXT, out);
    figure_print(row, "kernel set", "kernel_set", VIEW_TEXT, out);

    section_print("prompt", problem == NULL ? "" : problem, problem == NULL ? 0 : strlen(problem), out);
    if (text == NULL) return;
    for (const char *next = text; (next = strstr(next, close_tag)) != NULL; next += strlen(close_tag)) close = next;
    if (strncmp(text, open_tag, strlen(open_tag)) == 0) text += strlen(open_tag);
    section_print(close == NULL ? "thinking (never ended)" : "thinking", text,
                  close == NULL ? strlen(text) : (size_t)(close - text), out);
    if (close != NULL) section_print("answer", close + strlen(close_tag), strlen(close + strlen(close_tag)), out);
}

int report_exit_code(const json_t *job)
{
    const char *state = text_of(job, "state");
    double done = view_number(job, "done"), errors = view_number(job, "errors");
    bool ended = strcmp(state, "done") == 0 || strcmp(state, "done_with_errors") == 0;

    if (strcmp(state, "cancelled") == 0) return EXIT_CANCELLED;
    if (ended && !(done > errors)) return EXIT_NOTHING;
    return strcmp(state, "done_with_errors") == 0 ? EXIT_ERRORS : EXIT_DONE;
}
