#include "coordinator/backlog.h"

#include <stdlib.h>
#include <string.h>

#define OTHER_BYTES 4096 /* HELLO, RELEASE, BYE: a few names and numbers */

struct held_message {
    struct held_message *next;
    size_t bytes;
    struct wire_message message;
};

/* What it takes in memory, near enough: a result's frame is its texts, and it is decoded beside them. */
static size_t message_bytes(const struct wire_message *message)
{
    const struct msg_result *result = message->in.body;
    size_t bytes = sizeof(struct held_message);

    if (message->in.type != MSG_RESULT_TYPE) return bytes + OTHER_BYTES;
    for (uint32_t i = 0; i < result->n_results; i++) {
        const struct rec_result *row = &result->results[i];
        bytes += 2 * sizeof *row + row->text.len + row->error.len + row->extracted.len + row->prompt_ids.len;
    }
    return bytes;
}

/* The same batch, sent again. The key is compared too: nobody takes the place of another's. */
static bool is_copy(const struct wire_message *a, const struct wire_message *b)
{
    const struct msg_result *left = a->in.body, *right = b->in.body;

    return a->in.type == MSG_RESULT_TYPE && b->in.type == MSG_RESULT_TYPE && left->fence == right->fence &&
           left->batch == right->batch && strcmp(a->peer.key_z85, b->peer.key_z85) == 0;
}

static struct held_message *copy_find(const struct backlog *backlog, const struct wire_message *message)
{
    struct held_message *held = backlog->first;

    while (held != NULL && !is_copy(&held->message, message)) held = held->next;
    return held;
}

bool backlog_put(struct backlog *backlog, struct wire_message *message)
{
    size_t bytes = message_bytes(message);
    struct held_message *held = copy_find(backlog, message);

    if (held != NULL && bytes <= held->bytes + (BACKLOG_BYTES - backlog->bytes)) {
        wire_message_free(&held->message);
        held->message = *message;
        backlog->bytes += bytes - held->bytes;
        held->bytes = bytes;
        return true;
    }
    if (held != NULL || backlog->n >= BACKLOG_MESSAGES || bytes > BACKLOG_BYTES - backlog->bytes ||
        (held = calloc(1, sizeof *held)) == NULL) {
        wire_message_free(message);
        return false;
    }
    held->message = *message;
    held->bytes = bytes;
    if (backlog->last != NULL)
        backlog->last->next = held;
    else
        backlog->first = held;
    backlog->last = held;
    backlog->n++;
    backlog->bytes += bytes;
    return true;
}

bool backlog_take(struct backlog *backlog, struct wire_message *out)
{
    struct held_message *held = backlog->first;

    if (held == NULL) return false;
    *out = held->message;
    backlog->first = held->next;
    if (backlog->first == NULL) backlog->last = NULL;
    backlog->n--;
    backlog->bytes -= held->bytes;
    free(held);
    return true;
}

void backlog_free(struct backlog *backlog)
{
    struct wire_message message;

    while (backlog_take(backlog, &message)) wire_message_free(&message);
}
