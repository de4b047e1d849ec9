/* kv_map_text.c: a KV map for a terminal or a pipe. See kv_map.h. */
#include <stdlib.h>
#include <string.h>

#include "worker/color_scale.h"
#include "worker/kv_map.h"

#define FIGURES_WIDTH 26 /* two spaces, then final, mean and peak */
#define NARROWEST     8  /* columns that the map itself has on any terminal */
#define WIDEST_CELL   4
#define LEGEND_CELLS  24 /* of a scale in colours */

static const char ascii_levels[] = " .:-=+*#%@";
static const char *const block_levels[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};

int kv_map_level(double value, double top, int levels)
{
    if (!(top > 0) || !(value > 0)) return 0;
    int level = (int)(value / top * levels);
    return level < levels ? level : levels - 1;
}

static int ink_levels(enum kv_ink ink)
{
    if (ink == KV_INK_ASCII) return (int)sizeof ascii_levels - 1;
    return (int)(sizeof block_levels / sizeof *block_levels);
}

static bool ink_colors(enum kv_ink ink)
{
    return ink == KV_INK_256 || ink == KV_INK_TRUE;
}

static void cell_print(enum kv_ink ink, double share, int width, FILE *out)
{
    int level = kv_map_level(share, 1, ink_levels(ink));
    unsigned char rgb[3];
    color_scale(share, rgb);
    if (ink == KV_INK_256) fprintf(out, "\033[48;5;%dm", color_256(rgb));
    if (ink == KV_INK_TRUE) fprintf(out, "\033[48;2;%d;%d;%dm", rgb[0], rgb[1], rgb[2]);
    for (int i = 0; i < width; i++) {
        if (ink_colors(ink))
            fputc(' ', out);
        else if (ink == KV_INK_ASCII)
            fputc(ascii_levels[level], out);
        else
            fputs(block_levels[level], out);
    }
}

static void ink_end(enum kv_ink ink, FILE *out)
{
    if (ink_colors(ink)) fputs("\033[0m", out);
}

static void scale_print(const struct kv_map_text *text, double top, FILE *out)
{
    int levels = ink_colors(text->ink) ? LEGEND_CELLS : ink_levels(text->ink);
    fputs("scale  0 ", out);
    if (!ink_colors(text->ink)) fputc('|', out);
    for (int k = 0; k < levels; k++) cell_print(text->ink, (k + 0.5) / levels, 1, out);
    ink_end(text->ink, out);
    if (!ink_colors(text->ink)) fputc('|', out);
    fprintf(out, " %.0f entries%s", top, text->by_layer ? " of a layer" : "");
    if (!ink_colors(text->ink)) fprintf(out, ", %.3g a step", top / levels);
    fputc('\n', out);
}

static void figures_print(const struct kv_map_figures *figures, FILE *out)
{
    fprintf(out, "  %7lld %8.1f %7lld", (long long)figures->final, figures->mean, (long long)figures->peak);
}

/* Tokens seen at the columns' first tokens, as many as there is room for, and at the end. */
static void axis_print(const struct kv_grid *grid, int left, int cell, FILE *out)
{
    int at = 0, width = grid->columns * cell;
    char end[16], label[16];
    int end_width = snprintf(end, sizeof end, "%d", grid->tokens[grid->columns]);
    fprintf(out, "%-*s", left, "tokens");
    for (int c = 0; c < grid->columns; c++) {
        int length = snprintf(label, sizeof label, "%d", grid->tokens[c]);
        if (c * cell < at + (c > 0) || c * cell + length + 1 + end_width > width) continue;
        fprintf(out, "%*s%s", c * cell - at, "", label);
        at = c * cell + length;
    }
    int gap = width - at - end_width;
    fprintf(out, "%*s%s\n", gap > 1 ? gap : 1, "", end);
}

static void title_print(const struct kv_map_text *text, const struct kv_grid *grid, FILE *out)
{
    fprintf(out, "KV entries over time: a row a %s, ", text->by_layer ? "layer" : "KV head");
    if (kv_map_compactions(text->map) == 0)
        fprintf(out, "a column %d tokens (no compaction)", grid->columns > 1 ? grid->tokens[1] - grid->tokens[0] : 1);
    else if (grid->merged == 1)
        fprintf(out, "a column from one compaction to the next");
    else
        fprintf(out, "a column the mean of up to %d compactions", grid->merged);
    fputs("\n\n", out);
}

static void layers_print(const struct kv_map_text *text, FILE *out)
{
    const struct kv_map *map = text->map;
    int heads = map->kv_heads, compactions = kv_map_compactions(map);
    fprintf(out, "\nlayer%26s%s\n", "final     mean    peak", compactions > 0 ? "    kept  of the budget" : "");
    for (int l = 0; l <= map->layers; l++) {
        bool all = l == map->layers;
        struct kv_map_figures figures =
            all ? kv_map_figures(map, 0, map->layers * heads) : kv_map_figures(map, l * heads, heads);
        if (all)
            fputs("  all", out);
        else
            fprintf(out, "%5d", l);
        figures_print(&figures, out);
        if (compactions > 0 && text->budget_tokens > 0)
            fprintf(out, " %7.0f  %13.2f", figures.kept,
                    figures.kept / ((double)text->budget_tokens * heads * (all ? map->layers : 1)));
        fputc('\n', out);
    }
}

static void budget_print(const struct kv_map_text *text, FILE *out)
{
    const struct kv_map *map = text->map;
    int lists = map->layers * map->kv_heads, compactions = kv_map_compactions(map);
    if (text->budget_tokens == 0) {
        fputs("\nfull cache: nothing is evicted\n", out);
        return;
    }
    fprintf(out, "\nbudget %d x %d layers x %d heads = %lld entries", text->budget_tokens, map->layers, map->kv_heads,
            (long long)text->budget_tokens * lists);
    struct kv_map_figures all = kv_map_figures(map, 0, lists);
    if (compactions == 0)
        fputs("; no compaction was due", out);
    else if (all.kept_least == all.kept_most)
        fprintf(out, "; %s %lld", compactions == 1 ? "after the one compaction" : "after every compaction",
                (long long)all.kept_most);
    else
        fprintf(out, "; after compactions %lld to %lld", (long long)all.kept_least, (long long)all.kept_most);
    if (compactions > 0 && all.kept_least < (int64_t)text->budget_tokens * lists)
        fputs("\nless than the budget: a layer held no more than its share of it and kept all it had", out);
    fputc('\n', out);
}

int kv_map_print(const struct kv_map_text *text, FILE *out, struct kvf_err *err)
{
    const struct kv_map *map = text->map;
    int left = text->by_layer ? 7 : 12, per_row = text->by_layer ? map->kv_heads : 1;
    int room = text->width - left - FIGURES_WIDTH;
    struct kv_grid grid;
    if (room < NARROWEST) room = NARROWEST;
    int rc = kv_grid_make(map, text->by_layer, text->interval_tokens, room, &grid, err);
    if (rc != 0) return rc;
    int cell = room / grid.columns < WIDEST_CELL ? room / grid.columns : WIDEST_CELL;

    title_print(text, &grid, out);
    fprintf(out, "%-*s%-*s    final     mean    peak\n", left, text->by_layer ? "layer" : "layer head",
            grid.columns * cell, "");
    for (int row = 0; row < grid.rows; row++) {
        struct kv_map_figures figures = kv_map_figures(map, row * per_row, per_row);
        if (text->by_layer)
            fprintf(out, "%5d  ", row);
        else if (row % map->kv_heads == 0)
            fprintf(out, "%5d %4d  ", row / map->kv_heads, 0);
        else
            fprintf(out, "%10d  ", row % map->kv_heads);
        for (int c = 0; c < grid.columns; c++)
            cell_print(text->ink, grid.top > 0 ? grid.cells[(int64_t)row * grid.columns + c] / grid.top : 0, cell, out);
        ink_end(text->ink, out);
        figures_print(&figures, out);
        fputc('\n', out);
    }
    axis_print(&grid, left, cell, out);
    scale_print(text, grid.top, out);
    layers_print(text, out);
    budget_print(text, out);
    kv_grid_free(&grid);
    return 0;
}
