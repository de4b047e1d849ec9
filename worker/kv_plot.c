/* kv_plot.c: see kv_plot.h. */
#include "worker/kv_plot.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "worker/color_scale.h"
#include "worker/text.h"

/* Pixels. */
#define WIDTH        1000
#define LEFT         86 /* of the plots, as are the next two */
#define PLOT_WIDTH   760
#define TOP          108
#define MAP_HEIGHT   560 /* most of it */
#define CHART_HEIGHT 190
#define GAP          64 /* between the plots: axis labels */
#define BOTTOM       100

#define SEAM 0.5 /* cells reach so far under the next, so that no background shines through */

#define COLUMNS_MAX 256
#define SAMPLES     400 /* of a line, about */
#define TITLE_FONT  17
#define SCALE_STOPS 16

struct canvas {
    const struct kv_plot *plot;
    struct kv_grid grid;
    FILE *out;
    double row_height, map_height, chart_top;
    int from, to; /* tokens */
};

static double x_of(const struct canvas *canvas, double tokens)
{
    return LEFT + (tokens - canvas->from) / (canvas->to - canvas->from) * PLOT_WIDTH;
}

/* XML text of what may be any bytes. */
static void xml_print(const char *raw, FILE *out)
{
    char *copy = strdup(raw), *text = copy == NULL ? NULL : text_repair(copy);
    for (const char *c = text; c != NULL && *c != 0; c++) {
        if (*c == '&')
            fputs("&amp;", out);
        else if (*c == '<')
            fputs("&lt;", out);
        else if (*c == '>')
            fputs("&gt;", out);
        else
            fputc((unsigned char)*c < 0x20 ? ' ' : *c, out);
    }
    free(text);
}

/* The smallest of 1, 2, 5 x 10^k that cuts `span` in at most `most` steps. */
static double step_of(double span, int most)
{
    double power = pow(10, floor(log10(span / most)));
    static const double nice[] = {1, 2, 5, 10};
    for (int i = 0; i < 3; i++)
        if (span / (nice[i] * power) <= most) return nice[i] * power;
    return 10 * power;
}

static const char *bytes_unit(double bytes, double *size)
{
    *size = bytes >= 1 << 30 ? 1 << 30 : bytes >= 1 << 20 ? 1 << 20 : 1 << 10;
    return bytes >= 1 << 30 ? "GiB" : bytes >= 1 << 20 ? "MiB" : "KiB";
}

static void bytes_print(double bytes, FILE *out)
{
    double size;
    const char *unit = bytes_unit(bytes, &size);
    fprintf(out, "%.2f %s", bytes / size, unit);
}

static int64_t full_bytes(const struct canvas *canvas, int tokens)
{
    const struct kv_plot *plot = canvas->plot;
    int64_t pages = (tokens + plot->page_entries - 1) / plot->page_entries;
    return pages * plot->map->layers * plot->map->kv_heads * plot->page_bytes;
}

/* ---- head ---- */

static void title_draw(const struct canvas *canvas)
{
    const struct kv_plot *plot = canvas->plot;
    double size = 1.7 * WIDTH / (double)(strlen(plot->model) + strlen(plot->policy) + 3);
    fprintf(canvas->out, "<text x=\"%d\" y=\"30\" font-size=\"%.1f\" font-weight=\"bold\">", LEFT,
            size < TITLE_FONT ? size : TITLE_FONT);
    xml_print(plot->model, canvas->out);
    fputs(": ", canvas->out);
    xml_print(plot->policy, canvas->out);
    fputs("</text>\n", canvas->out);
    int compactions = kv_map_compactions(plot->map);
    fprintf(canvas->out, "<text x=\"%d\" y=\"50\">", LEFT);
    if (plot->budget_tokens > 0)
        fprintf(canvas->out, "budget %d entries a head, interval %d tokens, %d compaction%s", plot->budget_tokens,
                plot->interval_tokens, compactions, compactions == 1 ? "" : "s");
    else
        fputs("nothing is evicted", canvas->out);
    fprintf(canvas->out, "; tokens %d to %d</text>\n<text x=\"%d\" y=\"68\" fill=\"#666\">%s", canvas->from,
            plot->map->tokens[plot->map->count - 1], LEFT,
            compactions > 0 ? "a cell: entries right after a compaction; before the first, while the cache fills"
                            : "a cell: entries while the cache fills");
    if (canvas->grid.merged > 1) fprintf(canvas->out, "; mean of up to %d", canvas->grid.merged);
    fputs("</text>\n", canvas->out);
}

/* ---- heat map ---- */

static void cells_draw(const struct canvas *canvas)
{
    const struct kv_grid *grid = &canvas->grid;
    const struct kv_map *map = canvas->plot->map;
    fputs("<g shape-rendering=\"crispEdges\">\n", canvas->out);
    for (int row = 0; row < grid->rows; row++) {
        for (int c = 0; c < grid->columns; c++) {
            double value = grid->cells[(int64_t)row * grid->columns + c];
            double x = x_of(canvas, grid->tokens[c]), end = x_of(canvas, grid->tokens[c + 1]);
            unsigned char rgb[3];
            color_scale(grid->top > 0 ? value / grid->top : 0, rgb);
            fprintf(canvas->out,
                    "<rect class=\"cell\" x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" "
                    "fill=\"#%02x%02x%02x\"><title>layer %d",
                    x, TOP + row * canvas->row_height, end - x + (c + 1 < grid->columns ? SEAM : 0),
                    canvas->row_height + (row + 1 < grid->rows ? SEAM : 0), rgb[0], rgb[1], rgb[2],
                    canvas->plot->by_layer ? row : row / map->kv_heads);
            if (!canvas->plot->by_layer) fprintf(canvas->out, ", head %d", row % map->kv_heads);
            fprintf(canvas->out, ", from token %d: %.4g entries</title></rect>\n", grid->tokens[c], value);
        }
    }
    fputs("</g>\n", canvas->out);
}

/* Layers by their number, as many as there is room for; heads where their rows are high enough to read. */
static void rows_label(const struct canvas *canvas)
{
    const struct kv_map *map = canvas->plot->map;
    int per_layer = canvas->plot->by_layer ? 1 : map->kv_heads;
    double layer_height = canvas->row_height * per_layer;
    int every = (int)ceil(12 / layer_height);
    for (int l = 0; l < map->layers; l++) {
        double y = TOP + l * layer_height;
        if (l > 0 && per_layer > 1)
            fprintf(canvas->out, "<path d=\"M%d %.2fh%d\" stroke=\"#fff\" stroke-width=\"1\"/>\n", LEFT, y, PLOT_WIDTH);
        if (l % every == 0)
            fprintf(canvas->out, "<text x=\"%d\" y=\"%.2f\" text-anchor=\"end\">%d</text>\n",
                    LEFT - (per_layer > 1 ? 22 : 8), y + layer_height / 2 + 4, l);
        for (int h = 0; h < per_layer && per_layer > 1 && canvas->row_height >= 8; h++)
            fprintf(canvas->out,
                    "<text x=\"%d\" y=\"%.2f\" text-anchor=\"end\" font-size=\"8\" fill=\"#666\">%d</text>\n", LEFT - 6,
                    y + (h + 0.5) * canvas->row_height + 3, h);
    }
    fprintf(canvas->out, "<text transform=\"translate(22 %.1f) rotate(-90)\" text-anchor=\"middle\">%s</text>\n",
            TOP + canvas->map_height / 2, per_layer > 1 ? "layer and KV head" : "layer");
}

static void scale_draw(const struct canvas *canvas)
{
    FILE *out = canvas->out;
    int x = LEFT + PLOT_WIDTH + 24;
    fputs("<defs><linearGradient id=\"scale\" x1=\"0\" y1=\"1\" x2=\"0\" y2=\"0\">", out);
    for (int k = 0; k <= SCALE_STOPS; k++) {
        unsigned char rgb[3];
        color_scale((double)k / SCALE_STOPS, rgb);
        fprintf(out, "<stop offset=\"%.4f\" stop-color=\"#%02x%02x%02x\"/>", (double)k / SCALE_STOPS, rgb[0], rgb[1],
                rgb[2]);
    }
    fputs("</linearGradient></defs>\n", out);
    fprintf(out, "<rect class=\"scale\" x=\"%d\" y=\"%d\" width=\"14\" height=\"%.2f\" fill=\"url(#scale)\"/>\n", x,
            TOP, canvas->map_height);
    double step = canvas->grid.top > 0 ? step_of(canvas->grid.top, 6) : 1;
    for (double value = 0; value <= canvas->grid.top * (1 + 1e-9); value += step) {
        double y = TOP + canvas->map_height * (1 - (canvas->grid.top > 0 ? value / canvas->grid.top : 0));
        fprintf(out, "<path d=\"M%d %.2fh5\" stroke=\"#333\"/><text x=\"%d\" y=\"%.2f\">%.4g</text>\n", x + 14, y,
                x + 23, y + 4, value);
    }
    fprintf(out, "<text x=\"%d\" y=\"%d\">entries%s</text>\n", x, TOP - 10,
            canvas->plot->by_layer ? " of a layer" : "");
}

/* ---- chart ---- */

static void tokens_axis(const struct canvas *canvas, double y)
{
    double step = step_of(canvas->to - canvas->from, 10);
    if (step < 1) step = 1;
    for (double at = ceil(canvas->from / step) * step; at <= canvas->to; at += step)
        fprintf(canvas->out,
                "<path d=\"M%.2f %.2fv5\" stroke=\"#333\"/><text x=\"%.2f\" y=\"%.2f\" "
                "text-anchor=\"middle\">%.0f</text>\n",
                x_of(canvas, at), y, x_of(canvas, at), y + 18, at);
    fprintf(canvas->out, "<text x=\"%d\" y=\"%.2f\" text-anchor=\"middle\">tokens seen (prompt and output)</text>\n",
            LEFT + PLOT_WIDTH / 2, y + 36);
}

static void line_draw(const struct canvas *canvas, bool full, double top, const char *style)
{
    const struct kv_plot *plot = canvas->plot;
    const struct kv_map *map = plot->map;
    int step = (canvas->to - canvas->from) / SAMPLES;
    if (step < 1) step = 1;
    fprintf(canvas->out, "<polyline class=\"%s\" fill=\"none\" %s points=\"", full ? "full" : "live", style);
    for (int p = 0; p < map->count; p++) {
        int end = p + 1 < map->count ? map->tokens[p + 1] : map->tokens[p];
        for (int at = map->tokens[p];;) {
            int64_t bytes = full ? full_bytes(canvas, at)
                                 : kv_map_bytes(map, p, at - map->tokens[p], plot->page_entries, plot->page_bytes);
            fprintf(canvas->out, "%.2f,%.2f ", x_of(canvas, at),
                    canvas->chart_top + CHART_HEIGHT * (1 - (double)bytes / top));
            if (at >= end) break;
            at = at + step < end ? at + step : end;
        }
    }
    fputs("\"/>\n", canvas->out);
}

/* of_mean, of_peak: what the figures are a share of; 0: of nothing. */
static void key_draw(const struct canvas *canvas, int line, const char *style, const char *name, double mean,
                     double peak, double of_mean, double of_peak)
{
    double y = canvas->chart_top + CHART_HEIGHT + 62 + line * 18;
    fprintf(canvas->out, "<path d=\"M%d %.2fh24\" %s/><text x=\"%d\" y=\"%.2f\">%s: mean ", LEFT, y - 4, style,
            LEFT + 30, y, name);
    bytes_print(mean, canvas->out);
    if (of_mean > 0) fprintf(canvas->out, " (%.2f of full)", mean / of_mean);
    fputs(", peak ", canvas->out);
    bytes_print(peak, canvas->out);
    if (of_peak > 0) fprintf(canvas->out, " (%.2f)", peak / of_peak);
    fputs("</text>\n", canvas->out);
}

static void chart_draw(const struct canvas *canvas)
{
    static const char *const live_style = "stroke=\"#1b6ca8\" stroke-width=\"1.6\"";
    static const char *const full_style = "stroke=\"#d9822b\" stroke-width=\"1.6\" stroke-dasharray=\"6 3\"";
    const struct kv_plot *plot = canvas->plot;
    const struct kv_map *map = plot->map;
    int first = map->tokens[0], last = map->tokens[map->count - 1];
    double mean, full_mean = 0, size;
    int64_t peak, full_peak = full_bytes(canvas, last);
    kv_map_live(map, plot->page_entries, plot->page_bytes, &mean, &peak);
    for (int t = first + 1; t <= last; t++) full_mean += (double)full_bytes(canvas, t) / (last - first);
    if (last == first) full_mean = (double)full_peak;
    double top = 1.05 * (double)(full_peak > peak ? full_peak : peak);
    if (!(top > 0)) top = 1;
    const char *unit = bytes_unit(top, &size);
    double step = step_of(top / size, 5);
    for (double value = 0; value <= top / size; value += step) {
        double y = canvas->chart_top + CHART_HEIGHT * (1 - value * size / top);
        fprintf(canvas->out,
                "<path d=\"M%d %.2fh%d\" stroke=\"#ddd\"/><text x=\"%d\" y=\"%.2f\" text-anchor=\"end\">%.4g</text>\n",
                LEFT, y, PLOT_WIDTH, LEFT - 8, y + 4, value);
    }
    line_draw(canvas, false, top, live_style);
    line_draw(canvas, true, top, full_style);
    fprintf(canvas->out, "<text transform=\"translate(22 %.1f) rotate(-90)\" text-anchor=\"middle\">cache, %s</text>\n",
            canvas->chart_top + CHART_HEIGHT / 2.0, unit);
    key_draw(canvas, 0, live_style, "live pages", mean, (double)peak, full_mean, (double)full_peak);
    key_draw(canvas, 1, full_style, "full cache", full_mean, (double)full_peak, 0, 0);
}

int kv_plot_write(const struct kv_plot *plot, FILE *out, struct kvf_err *err)
{
    struct canvas canvas = {.plot = plot, .out = out};
    int rc = kv_grid_make(plot->map, plot->by_layer, plot->interval_tokens, COLUMNS_MAX, &canvas.grid, err);
    if (rc != 0) return rc;
    canvas.row_height = (double)MAP_HEIGHT / canvas.grid.rows;
    if (canvas.row_height > 14) canvas.row_height = 14;
    if (canvas.row_height < 2) canvas.row_height = 2;
    canvas.map_height = canvas.row_height * canvas.grid.rows;
    canvas.chart_top = TOP + canvas.map_height + GAP;
    canvas.from = canvas.grid.tokens[0];
    canvas.to = canvas.grid.tokens[canvas.grid.columns];
    double height = canvas.chart_top + CHART_HEIGHT + BOTTOM;
    fprintf(out,
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%.0f\" viewBox=\"0 0 %d %.0f\" "
            "font-family=\"sans-serif\" font-size=\"12\" fill=\"#222\">\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
            WIDTH, height, WIDTH, height);
    title_draw(&canvas);
    cells_draw(&canvas);
    rows_label(&canvas);
    scale_draw(&canvas);
    tokens_axis(&canvas, TOP + canvas.map_height);
    chart_draw(&canvas);
    tokens_axis(&canvas, canvas.chart_top + CHART_HEIGHT);
    fputs("</svg>\n", out);
    kv_grid_free(&canvas.grid);
    return 0;
}
