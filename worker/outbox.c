/* outbox.c: see outbox.h. */
#include "worker/outbox.h"

#include <stdlib.h>
#include <string.h>

void outbox_init(struct outbox *outbox, int64_t linger_ms, int64_t resend_ms)
{
    *outbox = (struct outbox){.linger_ms = linger_ms, .resend_ms = resend_ms};
}

static void batch_free(struct batch *batch)
{
    rows_free(batch->rows);
    free(batch);
}

/* Unlinks *at; returns its rows. */
static int batch_forget(struct outbox *outbox, struct batch **at)
{
    struct batch *batch = *at;
    int rows = batch->n_rows;
    *at = batch->next;
    outbox->n_rows -= rows;
    batch_free(batch);
    return rows;
}

void outbox_free(struct outbox *outbox)
{
    while (outbox->first != NULL) batch_forget(outbox, &outbox->first);
}

static int64_t row_bytes(const struct row *row)
{
    return (int64_t)row->rec.text.len + row->rec.error.len + row->rec.extracted.len + row->rec.prompt_ids.len + 512;
}

int outbox_add(struct outbox *outbox, struct row *row, int64_t now_ms)
{
    struct batch **at = &outbox->first;
    struct batch *open = NULL;
    int64_t bytes = row_bytes(row);
    for (; *at != NULL; at = &(*at)->next) {
        if ((*at)->closed || (*at)->fence != row->fence) continue;
        if ((*at)->bytes + bytes > OUTBOX_BATCH_BYTES)
            (*at)->closed = true;
        else
            open = *at;
    }
    if (open == NULL) {
        open = calloc(1, sizeof *open);
        if (open == NULL) return KVF_ENOMEM;
        open->fence = row->fence;
        open->number = ++outbox->last_number;
        open->rows_end = &open->rows;
        open->opened_ms = now_ms;
        open->sent_ms = -1;
        *at = open;
    }
    row->next = NULL;
    *open->rows_end = row;
    open->rows_end = &row->next;
    open->bytes += bytes;
    outbox->n_rows++;
    if (++open->n_rows == OUTBOX_BATCH_ROWS) open->closed = true;
    return 0;
}

void outbox_close(struct outbox *outbox, int64_t fence)
{
    for (struct batch *batch = outbox->first; batch != NULL; batch = batch->next)
        if (batch->fence == fence) batch->closed = true;
}

static int64_t due_ms(const struct outbox *outbox, const struct batch *batch)
{
    if (!batch->closed) return batch->opened_ms + outbox->linger_ms;
    return batch->sent_ms < 0 ? batch->opened_ms : batch->sent_ms + outbox->resend_ms;
}

struct batch *outbox_due(struct outbox *outbox, int64_t now_ms)
{
    for (struct batch *batch = outbox->first; batch != NULL; batch = batch->next)
        if (due_ms(outbox, batch) <= now_ms) {
            batch->closed = true;
            return batch;
        }
    return NULL;
}

void outbox_sent(struct batch *batch, int64_t now_ms)
{
    batch->sent_ms = now_ms;
}

int64_t outbox_next_ms(const struct outbox *outbox)
{
    int64_t next = INT64_MAX;
    for (const struct batch *batch = outbox->first; batch != NULL; batch = batch->next)
        if (due_ms(outbox, batch) < next) next = due_ms(outbox, batch);
    return next;
}

void outbox_rewind(struct outbox *outbox)
{
    for (struct batch *batch = outbox->first; batch != NULL; batch = batch->next) batch->sent_ms = -1;
}

int outbox_ack(struct outbox *outbox, int64_t fence, int64_t number)
{
    for (struct batch **at = &outbox->first; *at != NULL; at = &(*at)->next)
        if ((*at)->fence == fence && (*at)->number == number) return batch_forget(outbox, at);
    return 0;
}

int outbox_revoke(struct outbox *outbox, int64_t fence)
{
    int rows = 0;
    struct batch **at = &outbox->first;
    while (*at != NULL) {
        if ((*at)->fence == fence)
            rows += batch_forget(outbox, at);
        else
            at = &(*at)->next;
    }
    return rows;
}

bool outbox_holds(const struct outbox *outbox, int64_t fence)
{
    for (const struct batch *batch = outbox->first; batch != NULL; batch = batch->next)
        if (batch->fence == fence) return true;
    return false;
}
