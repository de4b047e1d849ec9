#include "coordinator/client/progress.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "coordinator/client/format.h"
#include "coordinator/client/table.h"

static int64_t member_int(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    return json_is_integer(value) ? json_integer_value(value)
           : json_is_real(value)  ? (int64_t)json_real_value(value)
                                  : 0;
}

static double member_real(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    return json_is_number(value) ? json_number_value(value) : NAN;
}

int progress_parse(const json_t *row, struct progress *out, struct kvf_err *err)
{
    const json_t *cells = json_object_get(row, "cells"), *cell;
    const char *state = json_string_value(json_object_get(row, "state"));
    size_t i;

    memset(out, 0, sizeof *out);
    if (state == NULL || !json_is_integer(json_object_get(row, "job_id")))
        return kvf_fail(err, KVF_ECORRUPT, "progress: expected an object with job_id and state");
    snprintf(out->state, sizeof out->state, "%s", state);
    out->job_id = member_int(row, "job_id");
    out->total = member_int(row, "total");
    out->done = member_int(row, "done");
    out->errors = member_int(row, "errors");
    out->tokens = member_int(row, "tokens");
    out->workers = member_int(row, "workers");
    out->after_job = member_int(row, "after_job");
    out->samples_per_s = member_real(row, "samples_per_s");
    out->tokens_per_s = member_real(row, "tokens_per_s");
    out->eta_s = member_real(row, "eta_s");
    out->elapsed_s = member_real(row, "elapsed_s");
    if (json_array_size(cells) == 0) return KVF_OK;
    out->cells = calloc(json_array_size(cells), sizeof *out->cells);
    if (out->cells == NULL) return kvf_fail(err, KVF_ENOMEM, "progress: out of memory");
    json_array_foreach(cells, i, cell)
    {
        struct progress_cell *to = &out->cells[out->n_cells++];
        const char *label = json_string_value(json_object_get(cell, "label"));
        snprintf(to->label, sizeof to->label, "%s", label == NULL ? "?" : label);
        to->total = member_int(cell, "total");
        to->done = member_int(cell, "done");
        to->errors = member_int(cell, "errors");
    }
    return KVF_OK;
}

void progress_free(struct progress *progress)
{
    free(progress->cells);
    progress->cells = NULL;
    progress->n_cells = 0;
}

bool state_ended(const char *state)
{
    return strcmp(state, "done") == 0 || strcmp(state, "done_with_errors") == 0 || strcmp(state, "cancelled") == 0;
}

bool progress_ended(const struct progress *progress)
{
    return state_ended(progress->state);
}

int progress_percent(const struct progress *progress)
{
    if (progress->total <= 0) return 0;
    if (progress->done >= progress->total) return 100;
    return progress->done < 0 ? 0 : (int)((double)progress->done * 100 / (double)progress->total);
}

/* The figures that follow the counts, each with ", " or " · " before it. */
static void figures_print(const struct progress *progress, const char *joint, FILE *out)
{
    char text[FORMAT_MAX], noun[FORMAT_MAX + 16];

    if (strcmp(progress->state, "receiving") == 0) {
        fprintf(out, "%sits problems are on the way", joint);
    } else if (strcmp(progress->state, "queued") == 0) {
        fprintf(out, "%sits samples are being made", joint);
    } else if (progress->after_job > 0) {
        fprintf(out, "%swaiting: job %lld runs first", joint, (long long)progress->after_job);
    } else if (!progress_ended(progress)) {
        if (!isnan(progress->samples_per_s)) fprintf(out, "%s%.1f samples/s", joint, progress->samples_per_s);
        if (!isnan(progress->tokens_per_s))
            fprintf(out, "%s%s tok/s", joint, format_count(progress->tokens_per_s, text));
        if (!isnan(progress->eta_s)) fprintf(out, "%sETA %s", joint, format_duration(progress->eta_s, text));
        /* the first leases take a moment */
        if (progress->workers == 0)
            fprintf(out, "%sno workers%s", joint,
                    progress->elapsed_s < 5 ? " yet" : ": waiting for one that holds the model");
        else
            fprintf(out, "%s%s", joint, format_noun(progress->workers, "worker", noun, sizeof noun));
    } else if (!isnan(progress->elapsed_s)) {
        fprintf(out, "%s%s", joint, format_duration(progress->elapsed_s, text));
    }
    if (progress->errors > 0) fprintf(out, "%s%s", joint, format_noun(progress->errors, "error", noun, sizeof noun));
}

void progress_line(const struct progress *progress, char *out, size_t cap)
{
    char done[FORMAT_MAX], total[FORMAT_MAX];
    FILE *memory = fmemopen(out, cap, "w");

    out[0] = '\0';
    if (memory == NULL) return;
    fprintf(memory, "job %lld: ", (long long)progress->job_id);
    if (strcmp(progress->state, "running") != 0) fprintf(memory, "%s, ", progress->state);
    fprintf(memory, "%s/%s (%d %%)", format_count((double)progress->done, done),
            format_noun(progress->total, "sample", total, sizeof total), progress_percent(progress));
    figures_print(progress, ", ", memory);
    fclose(memory);
    out[cap - 1] = '\0';
}

/* Prints at most `width` columns of a text and pads it to that when `pad`. */
static void cut_print(const char *text, int width, bool pad, FILE *out)
{
    char copy[512];
    int used = 0;

    snprintf(copy, sizeof copy, "%s", text);
    for (size_t end = strlen(copy); text_width(copy) > width && end > 0;) {
        do {
            end--;
        } while (end > 0 && ((unsigned char)copy[end] & 0xc0) == 0x80);
        copy[end] = '\0';
    }
    text_print(copy, false, out);
    used = text_width(copy);
    if (pad) fprintf(out, "%*s", width - used, "");
}

static void bar_print(double share, int width, bool failed, const struct frame_style *style, FILE *out)
{
    static const char *const eighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
    int filled = (int)(share * width * 8), whole, part; /* rounded down: full only when all is done */

    if (filled < 0) filled = 0;
    if (filled > width * 8) filled = width * 8;
    whole = filled / 8;
    part = filled % 8;
    if (style->color) fputs(failed ? "\033[31m" : share >= 1 ? "\033[32m" : "\033[36m", out);
    if (style->unicode) {
        for (int i = 0; i < whole; i++) fputs("█", out);
        fputs(eighths[part], out);
        if (part > 0) whole++;
        if (style->color) fputs("\033[90m", out);
        for (int i = whole; i < width; i++) fputs("░", out);
    } else {
        for (int i = 0; i < whole; i++) fputc('#', out);
        for (int i = whole; i < width; i++) fputc('.', out);
    }
    if (style->color) fputs("\033[0m", out);
}

#define COUNTS_MAX 96

static const char *counts_format(int64_t done, int64_t total, int64_t errors, char out[COUNTS_MAX])
{
    char a[FORMAT_MAX], b[FORMAT_MAX], c[FORMAT_MAX];

    snprintf(out, COUNTS_MAX, "%s/%s", format_count((double)done, a), format_count((double)total, b));
    if (errors > 0) snprintf(out + strlen(out), COUNTS_MAX - strlen(out), ", %s err", format_count((double)errors, c));
    return out;
}

struct row_layout {
    int label_width, bar_width; /* no bar when that is 0 */
};

static void row_print(const char *label, int64_t done, int64_t total, int64_t errors, const struct row_layout *layout,
                      const struct frame_style *style, FILE *out)
{
    char counts[COUNTS_MAX];
    int used = layout->label_width + 1;

    cut_print(label, layout->label_width, true, out);
    if (layout->bar_width > 0) {
        fputc(' ', out);
        bar_print(total > 0 ? (double)done / (double)total : 0, layout->bar_width, errors > 0, style, out);
        used += layout->bar_width + 1;
    }
    fputc(' ', out);
    cut_print(counts_format(done, total, errors, counts), style->width - used, false, out);
    fputc('\n', out);
}

/* The bar gets what labels and counts leave. The total's counts are the widest but for the errors of cells. */
static struct row_layout row_layout_make(const struct progress *progress, int label_width,
                                         const struct frame_style *style)
{
    struct row_layout layout = {label_width, 0};
    char counts[COUNTS_MAX];
    int bar;

    if (layout.label_width > style->width / 2) layout.label_width = style->width / 2;
    bar = style->width - layout.label_width - 2 -
          text_width(counts_format(progress->total, progress->total, progress->errors, counts));
    if (bar >= 4) layout.bar_width = bar > 40 ? 40 : bar;
    return layout;
}

int progress_frame(const struct progress *progress, const char *title, const struct frame_style *style, FILE *out)
{
    char head[512], foot[512] = "", label[64];
    int label_width = 8, lines = 0, finished = 0;
    struct row_layout layout;
    /* title, total and figures, and the line that the cursor is on */
    bool bars = progress->n_cells > 1 && progress->n_cells + 4 <= style->height;
    FILE *memory;

    snprintf(head, sizeof head, "job %lld %s %s %s %s", (long long)progress->job_id, style->unicode ? "·" : "-", title,
             style->unicode ? "·" : "-", progress->state);
    if (style->color) fputs("\033[1m", out);
    cut_print(head, style->width, false, out);
    if (style->color) fputs("\033[0m", out);
    fputc('\n', out);
    lines++;

    for (int i = 0; i < progress->n_cells; i++) {
        finished += progress->cells[i].done >= progress->cells[i].total;
        if (bars && text_width(progress->cells[i].label) > label_width)
            label_width = text_width(progress->cells[i].label);
    }
    snprintf(label, sizeof label, "%s", "total");
    if (!bars && progress->n_cells > 1) {
        snprintf(label, sizeof label, "%d of %d cells", finished, progress->n_cells);
        label_width = text_width(label);
    }
    layout = row_layout_make(progress, label_width, style);
    for (int i = 0; bars && i < progress->n_cells; i++, lines++)
        row_print(progress->cells[i].label, progress->cells[i].done, progress->cells[i].total,
                  progress->cells[i].errors, &layout, style, out);
    row_print(label, progress->done, progress->total, progress->errors, &layout, style, out);
    lines++;

    memory = fmemopen(foot, sizeof foot, "w");
    if (memory != NULL) {
        fprintf(memory, "%d %%", progress_percent(progress));
        figures_print(progress, style->unicode ? " · " : " - ", memory);
        fclose(memory);
        foot[sizeof foot - 1] = '\0';
    }
    cut_print(foot, style->width, false, out);
    fputc('\n', out);
    return lines + 1;
}
