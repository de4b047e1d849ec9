#include "coordinator/client/watch.h"

#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include "coordinator/client/format.h"
#include "coordinator/client/interrupt.h"
#include "coordinator/client/progress.h"
#include "proto/clock.h"

#define LOOK_MS   500  /* between two looks */
#define ANSWER_MS 2000 /* a look that takes longer counts as the coordinator being away */
#define LINE_MS   5000

/* Cursor hidden and lines not wrapped while the view is up. */
#define VIEW_BEGIN "\033[?25l\033[?7l"
#define VIEW_END   "\033[?7h\033[?25h"

struct view {
    bool live; /* stderr is a terminal */
    struct frame_style style;
    int lines; /* of the frame on screen */
    struct watch_pace pace;
};

bool watch_due(struct watch_pace *pace, int percent, bool ended, int64_t now_ms)
{
    bool due = !pace->begun || ended || percent / 10 != pace->last_tenth || now_ms - pace->last_ms >= LINE_MS;

    if (!due) return false;
    pace->begun = true;
    pace->last_tenth = percent / 10;
    pace->last_ms = now_ms;
    return true;
}

static void view_begin(struct view *view)
{
    const char *term = getenv("TERM"), *no_color = getenv("NO_COLOR");

    memset(view, 0, sizeof *view);
    setlocale(LC_CTYPE, "");
    view->live = isatty(STDERR_FILENO) && term != NULL && strcmp(term, "dumb") != 0;
    view->style.unicode = strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
    view->style.color = no_color == NULL || no_color[0] == '\0';
    if (view->live) fputs(VIEW_BEGIN, stderr);
}

static void view_end(struct view *view)
{
    if (view->live) fputs(VIEW_END, stderr);
    fflush(stderr);
}

/* Puts `frame` over the one that is on screen, in one write, so that nothing flickers. */
static void frame_show(struct view *view, const char *frame, int lines)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);

    if (out == NULL) return;
    if (view->lines > 0) fprintf(out, "\033[%dA", view->lines);
    fputc('\r', out);
    for (const char *line = frame; *line != '\0';) {
        size_t length = strcspn(line, "\n");
        fwrite(line, 1, length, out);
        fputs("\033[K\n", out);
        line += length + (line[length] == '\n');
    }
    fputs("\033[J", out); /* what is left of a longer frame */
    if (fclose(out) == 0) {
        fwrite(text, 1, size, stderr);
        fflush(stderr);
    }
    free(text);
    view->lines = lines;
}

static void frame_draw(struct view *view, const struct progress *progress, const char *title, const char *trouble)
{
    struct winsize size;
    char *text = NULL;
    size_t length = 0;
    int lines;
    FILE *out = open_memstream(&text, &length);

    if (out == NULL) return;
    view->style.width = 80;
    view->style.height = 24;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
        view->style.width = size.ws_col;
        view->style.height = size.ws_row;
    }
    if (view->style.width < 20) view->style.width = 20;
    lines = progress_frame(progress, title, &view->style, out);
    if (trouble != NULL) {
        fprintf(out, "%.*s\n", view->style.width - 1, trouble);
        lines++;
    }
    if (fclose(out) == 0) frame_show(view, text, lines);
    free(text);
}

static void pause_until(int64_t until_ms)
{
    for (int64_t now; (now = clock_ms()) < until_ms && interrupt_seen == 0;)
        poll(NULL, 0, until_ms - now < 100 ? (int)(until_ms - now) : 100);
}

static int progress_fetch(struct session *session, int64_t job_id, json_t **row, struct progress *out,
                          struct kvf_err *err)
{
    struct session_query query = SESSION_QUERY("progress");
    json_t *rows;
    int code;

    query.job_id = job_id;
    query.limit = 1;
    code = session_rows(session, &query, &rows, NULL, err);
    if (code != KVF_OK) return code;
    *row = json_incref(json_array_get(rows, 0));
    json_decref(rows);
    if (*row == NULL) return kvf_fail(err, KVF_ENOTFOUND, "job %lld: there is no such job", (long long)job_id);
    code = progress_parse(*row, out, err);
    if (code != KVF_OK) {
        json_decref(*row);
        *row = NULL;
    }
    return code;
}

static void report_away(struct view *view, const struct progress *last, const char *title, int64_t away_since, int code,
                        const struct kvf_err *why)
{
    char text[KVF_ERR_MAX + 96], away[FORMAT_MAX];

    format_duration((double)(clock_ms() - away_since) / 1000, away);
    if (code == KVF_EUNAVAIL)
        snprintf(text, sizeof text, "coordinator away for %s, trying again; the job goes on", away);
    else
        snprintf(text, sizeof text, "coordinator without its database for %s, trying again: %s", away, why->text);
    if (view->live && last->state[0] != '\0')
        frame_draw(view, last, title, text);
    else if (watch_due(&view->pace, view->pace.last_tenth * 10, false, clock_ms()))
        fprintf(stderr, "%s\n", text);
}

static void report(struct view *view, const struct progress *progress, const json_t *row,
                   const struct watch_options *options)
{
    char line[512];
    bool ended = progress_ended(progress);

    if (view->live) frame_draw(view, progress, options->title, NULL);
    if (!watch_due(&view->pace, progress_percent(progress), ended, clock_ms())) return;
    if (!view->live) {
        progress_line(progress, line, sizeof line);
        fprintf(stderr, "%s\n", line);
    }
    if (options->json) {
        json_dumpf(row, stdout, JSON_COMPACT);
        fputc('\n', stdout);
        fflush(stdout);
    }
}

int watch_job(struct session *session, const struct watch_options *options, struct kvf_err *err)
{
    struct progress progress, next;
    struct view view;
    int64_t away_since = 0;
    int code = KVF_OK;

    memset(&progress, 0, sizeof progress);
    view_begin(&view);
    session_set_timeout(session, options->away_ms < ANSWER_MS ? options->away_ms : ANSWER_MS);
    for (;;) {
        json_t *row = NULL;
        int64_t look_ms = clock_ms();
        code = progress_fetch(session, options->job_id, &row, &next, err);
        if (interrupt_seen != 0) {
            if (code == KVF_OK) progress_free(&next);
            json_decref(row);
            code = kvf_fail(err, KVF_EAGAIN, "interrupted");
            break;
        }
        if (code == KVF_OK) {
            away_since = 0;
            progress_free(&progress);
            progress = next;
            report(&view, &progress, row, options);
            json_decref(row);
            if (progress_ended(&progress)) break;
        } else if (code == KVF_EUNAVAIL || code == KVF_EAGAIN) {
            if (away_since == 0) away_since = look_ms;
            if (clock_ms() - away_since >= options->away_ms) {
                struct kvf_err why = *err;
                char away[FORMAT_MAX];
                code = kvf_fail(err, KVF_EUNAVAIL, "gave up after %s, job %lld goes on: %s",
                                format_duration((double)options->away_ms / 1000, away), (long long)options->job_id,
                                why.text);
                break;
            }
            report_away(&view, &progress, options->title, away_since, code, err);
        } else {
            break;
        }
        pause_until(look_ms + LOOK_MS);
    }
    view_end(&view);
    progress_free(&progress);
    session_set_timeout(session, options->away_ms);
    return code;
}
