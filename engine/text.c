/* text.c: prompts into ids, output ids into text. */
#include <stdlib.h>
#include <string.h>
#include "engine/internal.h"
#include "engine/model/config.h"

#define PIECE_BYTES 2200 /* one token and what a flush can add */

int engine_prompt(const struct engine *engine, const char *template_name, const char *user, int32_t **ids, int *count,
                  char **text, struct kvf_err *err)
{
    char *rendered = NULL;
    int rc = chat_render(engine->tokenizer, template_name, user, &rendered, err);
    if (rc != 0) return rc;
    int add_special = !chat_has_bos(engine->tokenizer, rendered);
    rc = tokenizer_encode(engine->tokenizer, rendered, strlen(rendered), add_special, ids, count, err);
    if (rc == 0 && text != NULL)
        *text = rendered;
    else
        free(rendered);
    return rc;
}

int engine_check_template(const char *folder, const char *template_name, struct kvf_err *err)
{
    struct model_config config;
    struct tokenizer *tokenizer = NULL;
    char *rendered = NULL;
    int rc = config_read(folder, &config, err);
    if (rc == 0) rc = tokenizer_open(folder, config.vocab, &tokenizer, err);
    if (rc == 0) rc = chat_render(tokenizer, template_name, "", &rendered, err);
    free(rendered);
    tokenizer_close(&tokenizer);
    return rc;
}

/* Text of one id; the thinking tags stay although a tokenizer may call them special. */
static int piece_feed(const struct engine *engine, struct detok *detok, int32_t id, char *out, size_t cap)
{
    detok->skip_special = id != engine->think_open_id && id != engine->think_close_id;
    return detok_feed(detok, engine->tokenizer, id, out, cap);
}

static void think_watch(struct run *run, const char *text, int len, int tokens)
{
    static const char tag[] = "</think>";
    for (int i = 0; i < len && run->thinking_tokens < 0; i++) {
        if (text[i] != tag[run->think_match]) run->think_match = 0;
        if (text[i] == tag[run->think_match]) run->think_match++;
        if (tag[run->think_match] == '\0') run->thinking_tokens = tokens;
    }
}

void run_announce(struct engine *engine, struct run *run, int index, int last)
{
    char text[PIECE_BYTES];
    int32_t id = run->output[index];
    int len = piece_feed(engine, &run->detok, id, text, sizeof text / 2);
    if (last) len += detok_flush(&run->detok, text + len, sizeof text - (size_t)len);
    think_watch(run, text, len, index + 1);
    if (index < run->announced) return;
    run->announced = index + 1;
    engine->counters.emitted_tokens++;
    if (run->request.on_token != NULL) {
        run->request.on_token(run->request.user, run->request.id, id, text, (size_t)len);
    }
}

char *run_text(const struct engine *engine, const struct run *run)
{
    const int32_t *ids = run->figures.output_ids; /* finished: the run's own array went there */
    struct detok detok = {0};
    char piece[PIECE_BYTES];
    size_t used = 0, cap = 256 + (size_t)run->outputs * 8;
    char *text = malloc(cap);
    for (int i = 0; text != NULL && i <= run->outputs; i++) {
        int len = i < run->outputs ? piece_feed(engine, &detok, ids[i], piece, sizeof piece)
                                   : detok_flush(&detok, piece, sizeof piece);
        if (used + (size_t)len + 1 > cap) {
            cap = 2 * cap + (size_t)len;
            char *grown = realloc(text, cap);
            if (grown == NULL) free(text);
            text = grown;
            if (text == NULL) break;
        }
        memcpy(text + used, piece, (size_t)len);
        used += (size_t)len;
        text[used] = '\0';
    }
    return text;
}
