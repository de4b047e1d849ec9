/* The codec: what goes in comes out, and nothing else comes in. The cases are made from the field tables, so a message
 * that is added to messages.def is tested by that. */
#include <check.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "proto/crc32c.h"
#include "proto/message.h"
#include "proto/message_table.h"
#include "proto/scan.h"
#include "proto/utf8.h"

static struct kvf_err err;

/* ---- a small generator, so that a failure can be run again ---- */

static uint64_t random_state;

static uint64_t random_next(void)
{
    random_state += 0x9e3779b97f4a7c15u;
    uint64_t x = random_state;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static uint64_t random_below(uint64_t n)
{
    return random_next() % n;
}

/* ---- structs filled from the tables ---- */

#define POOL_MAX (1 << 16)
static void *pool[POOL_MAX]; /* what the filled structs point to */
static size_t n_pool;

static void *pool_take(size_t bytes)
{
    ck_assert_uint_lt(n_pool, POOL_MAX);
    void *taken = calloc(1, bytes == 0 ? 1 : bytes);
    pool[n_pool++] = taken;
    return taken;
}

static void pool_free(void)
{
    while (n_pool > 0) free(pool[--n_pool]);
}

static struct str random_text(uint32_t len)
{
    static const char *const pieces[] = {"a", "Z", "0", "\n", "\"", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80"};
    char *text = pool_take(len);
    uint32_t at = 0;
    while (at < len) {
        const char *piece = pieces[random_below(8)];
        uint32_t size = (uint32_t)strlen(piece);
        if (at + size > len) piece = "x", size = 1;
        memcpy(text + at, piece, size);
        at += size;
    }
    return (struct str){text, len};
}

static uint64_t random_number(const struct msg_field *field)
{
    uint64_t min = (uint64_t)field->min, span = field->max - min;
    switch (random_below(4)) {
    case 0:
        return min;
    case 1:
        return field->max;
    default:
        return span == UINT64_MAX ? random_next() : min + random_below(span + 1) % (1ull << random_below(64));
    }
}

static double random_double(void)
{
    static const double special[] = {0.0, -0.0, 1.5, -1e300, 5e-324, 0.1};
    return special[random_below(6)];
}

static void record_fill(const struct layout *layout, void *record)
{
    layout_init(layout, record);
    for (int i = 0; i < layout->n_fields; i++) {
        const struct msg_field *field = &layout->fields[i];
        const struct place *place = &layout->places[i];
        void *member = (char *)record + place->offset;
        uint32_t *count = (void *)((char *)record + place->count_offset);
        int absent = random_below(4) == 0;
        switch (field->kind) {
        case 'U':
        case 'I':
            *(uint64_t *)member = random_number(field);
            break;
        case 'M':
            if (!absent)
                *(int64_t *)member = random_below(2) ? (int64_t)(random_next() | 1) : -(int64_t)random_below(300);
            break;
        case 'F':
            if (!absent) *(double *)member = random_double();
            break;
        case 'S':
        case 'O':
            if (field->kind == 'O' && absent) break;
            *(struct str *)member = random_text((uint32_t)(random_below(8) == 0 && field->max < 5000
                                                               ? field->max
                                                               : random_below(field->max < 40 ? field->max : 40)));
            break;
        default:
            *count = (uint32_t)random_below(field->max < 5 ? field->max + 1 : 5);
            if (*count == 0) break;
            if (field->kind == 'D') {
                double *list = pool_take(*count * sizeof *list);
                for (uint32_t k = 0; k < *count; k++) list[k] = random_double();
                *(double **)member = list;
            } else {
                const struct layout *item = place->record();
                char *list = pool_take(*count * item->size);
                for (uint32_t k = 0; k < *count; k++) record_fill(item, list + k * item->size);
                *(char **)member = list;
            }
        }
    }
}

static int record_equal(const struct layout *layout, const void *a, const void *b)
{
    for (int i = 0; i < layout->n_fields; i++) {
        const struct place *place = &layout->places[i];
        const void *x = (const char *)a + place->offset, *y = (const char *)b + place->offset;
        const struct str *text_x = x, *text_y = y;
        uint32_t n_x = 0, n_y = 0;
        switch (layout->fields[i].kind) {
        case 'U':
        case 'I':
        case 'M':
            if (memcmp(x, y, 8) != 0) return 0;
            break;
        case 'F':
            if (!(isnan(*(const double *)x) && isnan(*(const double *)y)) && memcmp(x, y, 8) != 0) return 0;
            break;
        case 'S':
            if (text_x->len != text_y->len || text_y->text == NULL) return 0;
            if (memcmp(text_x->text, text_y->text, text_x->len) != 0) return 0;
            break;
        case 'O':
            if ((text_x->text == NULL) != (text_y->text == NULL) || text_x->len != text_y->len) return 0;
            if (text_x->text != NULL && memcmp(text_x->text, text_y->text, text_x->len) != 0) return 0;
            break;
        default:
            memcpy(&n_x, (const char *)a + place->count_offset, sizeof n_x);
            memcpy(&n_y, (const char *)b + place->count_offset, sizeof n_y);
            if (n_x != n_y) return 0;
            const char *list_x = *(const char *const *)x, *list_y = *(const char *const *)y;
            for (uint32_t k = 0; k < n_x; k++) {
                if (layout->fields[i].kind == 'D') {
                    if (memcmp(list_x + k * 8, list_y + k * 8, 8) != 0) return 0;
                } else {
                    const struct layout *item = place->record();
                    if (!record_equal(item, list_x + k * item->size, list_y + k * item->size)) return 0;
                }
            }
        }
    }
    return 1;
}

/* ---- bodies written by hand: an independent writer, so that encoder and decoder cannot be wrong together ---- */

struct bytes {
    unsigned char *at;
    size_t len, cap;
};

static void bytes_put(struct bytes *to, const void *from, size_t len)
{
    if (to->len + len > to->cap) {
        to->cap = (to->len + len) * 2;
        to->at = realloc(to->at, to->cap);
        ck_assert_ptr_nonnull(to->at);
    }
    if (len > 0) memcpy(to->at + to->len, from, len);
    to->len += len;
}

static void put_head(struct bytes *to, unsigned char type, uint64_t value, int width)
{
    bytes_put(to, &type, 1);
    for (int i = width - 1; i >= 0; i--) {
        unsigned char byte = (unsigned char)(value >> 8 * i);
        bytes_put(to, &byte, 1);
    }
}

static void put_u64(struct bytes *to, uint64_t value)
{
    put_head(to, 0xcf, value, 8);
}

static void put_i64(struct bytes *to, int64_t value)
{
    put_head(to, 0xd3, (uint64_t)value, 8);
}

static void put_f64(struct bytes *to, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, 8);
    put_head(to, 0xcb, bits, 8);
}

static void put_str(struct bytes *to, const void *text, size_t len)
{
    put_head(to, 0xdb, len, 4);
    bytes_put(to, text, len);
}

/* What to do to one field of one message. */
enum harm {
    HARM_NONE,
    HARM_MISSING,
    HARM_NIL,
    HARM_KIND,  /* the variant chooses a type that does not fit */
    HARM_OVER,  /* one more than the limit */
    HARM_UNDER, /* one less than the least */
    HARM_TWICE,
    HARM_UTF8,
    HARM_NAN,
    HARM_INF,
    HARM_ITEM, /* a list item of the wrong kind */
    HARM_COUNT
};

struct plan {
    const struct layout *layout; /* the record or message to harm ... */
    int field;                   /* ... in this field */
    enum harm harm;
    int variant, done;
};

static void record_write(struct bytes *to, const struct layout *layout, struct plan *plan);

static void value_write(struct bytes *to, const struct layout *layout, int i, struct plan *plan)
{
    const struct msg_field *field = &layout->fields[i];
    switch (field->kind) {
    case 'U':
        put_u64(to, (uint64_t)field->min);
        break;
    case 'I':
        put_i64(to, field->min);
        break;
    case 'M':
        put_i64(to, -5);
        break;
    case 'F':
        put_f64(to, 0.25);
        break;
    case 'S':
    case 'O':
        put_str(to, "ok", field->max < 2 ? field->max : 2);
        break;
    case 'D':
        put_head(to, 0xdd, 1, 4);
        put_f64(to, 0.5);
        break;
    default:
        put_head(to, 0xdd, 2, 4);
        record_write(to, layout->places[i].record(), plan);
        record_write(to, layout->places[i].record(), plan);
    }
}

/* Writes a value that must be refused; 0 when this harm does not exist for the field. */
static int harm_write(struct bytes *to, const struct layout *layout, int i, struct plan *plan)
{
    static const char *const bad_utf8[] = {"\xff",  "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80",
                                           "a\xc3", "\x80",     "\xe2\x82",     "\xf8\x88\x80\x80\x80"};
    const struct msg_field *field = &layout->fields[i];
    char kind = field->kind;
    int is_text = kind == 'S' || kind == 'O', is_list = kind == 'L' || kind == 'D',
        is_int = strchr("UIM", kind) != NULL;
    switch (plan->harm) {
    case HARM_NIL:
        put_head(to, 0xc0, 0, 0);
        return plan->variant == 0;
    case HARM_KIND:
        switch (plan->variant) {
        case 0:
            put_head(to, 0xc3, 0, 0);
            return 1;
        case 1:
            put_head(to, 0xc4, 1, 1);
            bytes_put(to, "x", 1);
            return 1;
        case 2:
            put_head(to, 0x80, 0, 0);
            return 1;
        case 3:
            put_u64(to, 1);
            return !is_int;
        case 4:
            put_f64(to, 1.0);
            return kind != 'F';
        case 5:
            put_str(to, "1", 1);
            return !is_text;
        case 6:
            put_head(to, 0x90, 0, 0);
            return !is_list;
        case 7:
            put_i64(to, -1);
            return kind == 'U' || !is_int;
        default:
            return 0;
        }
    case HARM_OVER:
        if (plan->variant != 0) return 0;
        if (kind == 'U' || kind == 'I') {
            put_u64(to, field->max + 1);
            return field->max != UINT64_MAX;
        }
        if (kind == 'M') {
            put_u64(to, (uint64_t)INT64_MAX + 1);
            return 1;
        }
        if (is_text) {
            char *text = malloc(field->max + 1);
            memset(text, 'x', field->max + 1);
            put_str(to, text, field->max + 1);
            free(text);
            return field->max + 1 < MSG_BODY_MAX;
        }
        if (is_list) {
            put_head(to, 0xdd, field->max + 1, 4);
            for (uint64_t k = 0; k <= field->max; k++) {
                if (kind == 'D')
                    put_f64(to, 0.5);
                else
                    record_write(to, layout->places[i].record(), NULL);
            }
            return 1;
        }
        return 0;
    case HARM_UNDER:
        if (plan->variant != 0) return 0;
        if (kind == 'M')
            put_i64(to, INT64_MIN);
        else
            put_u64(to, (uint64_t)field->min - 1);
        return kind == 'M' || (kind == 'U' && field->min > 0);
    case HARM_UTF8:
        if (!is_text || plan->variant >= (int)(sizeof bad_utf8 / sizeof bad_utf8[0])) return 0;
        put_str(to, bad_utf8[plan->variant], strlen(bad_utf8[plan->variant]));
        return strlen(bad_utf8[plan->variant]) <= field->max;
    case HARM_NAN:
    case HARM_INF:
        if (plan->variant > 1 || (kind != 'F' && kind != 'D')) return 0;
        if (kind == 'D') put_head(to, 0x91, 0, 0);
        if (plan->harm == HARM_NAN)
            put_f64(to, plan->variant ? -NAN : NAN);
        else
            put_f64(to, plan->variant ? -INFINITY : INFINITY);
        return 1;
    case HARM_ITEM:
        if (!is_list || plan->variant > 2) return 0;
        put_head(to, 0x91, 0, 0);
        if (plan->variant == 0)
            put_head(to, 0xc0, 0, 0);
        else if (plan->variant == 1)
            put_str(to, "x", 1);
        else
            put_head(to, 0x80, 0, 0);
        return 1;
    default:
        return 0;
    }
}

static void key_write(struct bytes *to, int key)
{
    put_head(to, 0xcc, (uint64_t)key, 1);
}

static void record_write(struct bytes *to, const struct layout *layout, struct plan *plan)
{
    int here = plan != NULL && plan->layout == layout && !plan->done;
    uint64_t pairs = (uint64_t)layout->n_fields;
    if (here && plan->harm == HARM_MISSING) pairs--;
    if (here && plan->harm == HARM_TWICE) pairs++;
    put_head(to, 0xde, pairs, 2);
    for (int i = 0; i < layout->n_fields; i++) {
        int harmed = here && plan->field == i;
        if (harmed && plan->harm == HARM_MISSING) {
            plan->done = plan->variant == 0 && kind_is_required(layout->fields[i].kind);
            continue;
        }
        key_write(to, layout->fields[i].key);
        if (harmed && plan->harm == HARM_TWICE) {
            plan->done = plan->variant == 0;
            value_write(to, layout, i, NULL);
            key_write(to, layout->fields[i].key);
        } else if (harmed && plan->harm != HARM_NONE) {
            plan->done = harm_write(to, layout, i, plan);
            continue;
        }
        value_write(to, layout, i, here ? NULL : plan);
    }
}

static void header_write(unsigned char header[MSG_HEADER_BYTES], int type, const void *body, size_t len)
{
    uint32_t crc = crc32c(body, len);
    const unsigned char made[MSG_HEADER_BYTES] = {'K',
                                                  'V',
                                                  'F',
                                                  'L',
                                                  MSG_PROTO_MAJOR,
                                                  (unsigned char)type,
                                                  0,
                                                  0,
                                                  0x78,
                                                  0x56,
                                                  0x34,
                                                  0x12,
                                                  (unsigned char)crc,
                                                  (unsigned char)(crc >> 8),
                                                  (unsigned char)(crc >> 16),
                                                  (unsigned char)(crc >> 24)};
    memcpy(header, made, sizeof made);
}

/* A copy of exactly the size, so that the sanitizer sees a read beyond it. */
static int decode_copy(int type, const void *body, size_t len, struct msg_in *in, void **copy)
{
    unsigned char header[MSG_HEADER_BYTES];
    header_write(header, type, body, len);
    *copy = malloc(len == 0 ? 1 : len);
    if (len > 0) memcpy(*copy, body, len);
    return msg_decode(header, sizeof header, *copy, len, in, &err);
}

static int decode_once(int type, const void *body, size_t len)
{
    struct msg_in in;
    void *copy;
    err.text[0] = 0;
    int code = decode_copy(type, body, len, &in, &copy);
    if (code != 0) ck_assert_ptr_null(in.arena);
    if (code != 0) ck_assert_uint_gt(strlen(err.text), 10);
    msg_in_free(&in);
    free(copy);
    return code;
}

/* ---- tests ---- */

START_TEST(tables_are_sound)
{
    int n_messages = 0;
    for (int type = 0; type < 256; type++) {
        const struct layout *layout = layout_of_type(type);
        if (layout == NULL) {
            ck_assert_ptr_null(msg_name(type));
            ck_assert_int_eq(msg_direction(type), 0);
            continue;
        }
        n_messages++;
        ck_assert_ptr_nonnull(strchr("WwCc", msg_direction(type)));
        int n;
        ck_assert_ptr_eq(msg_fields(type, &n), layout->fields);
        ck_assert_int_eq(n, layout->n_fields);
        for (int i = 0; i < n; i++) {
            ck_assert_int_ge(layout->fields[i].key, 1);
            ck_assert_int_le(layout->fields[i].key, MSG_KEY_MAX);
            ck_assert_int_eq(layout_find(layout, (uint64_t)layout->fields[i].key), i);
            if (layout->fields[i].kind == 'L') {
                int n_record;
                ck_assert_ptr_nonnull(rec_fields(layout->fields[i].record, &n_record));
            }
        }
    }
    ck_assert_int_eq(n_messages, 18);
    ck_assert_str_eq(msg_name(MSG_HELLO_TYPE), "HELLO");
    ck_assert_int_eq(msg_direction(MSG_HELLO_TYPE), 'W');
    ck_assert_int_eq(msg_direction(MSG_ROWS_TYPE), 'c');
    ck_assert_ptr_null(msg_name(-1));
    ck_assert_ptr_null(msg_name(256));
    int n;
    ck_assert_ptr_null(msg_fields(255, &n));
    ck_assert_int_eq(n, 0);
}
END_TEST

START_TEST(checksum_is_castagnoli)
{
    /* RFC 3720 B.4 and the usual check value */
    unsigned char data[32];
    ck_assert_uint_eq(crc32c("123456789", 9), 0xe3069283u);
    memset(data, 0, 32);
    ck_assert_uint_eq(crc32c(data, 32), 0x8a9136aau);
    memset(data, 0xff, 32);
    ck_assert_uint_eq(crc32c(data, 32), 0x62a8ab43u);
    for (int i = 0; i < 32; i++) data[i] = (unsigned char)i;
    ck_assert_uint_eq(crc32c(data, 32), 0x46dd794eu);
    ck_assert_uint_eq(crc32c("", 0), 0);
}
END_TEST

START_TEST(utf8_boundaries)
{
    static const struct {
        const char *text;
        size_t len, valid;
    } cases[] = {{"", 0, 0},
                 {"plain ascii text of more than sixteen bytes", 43, 43},
                 {"\x7f\xc2\x80\xdf\xbf", 5, 5},
                 {"\xe0\xa0\x80\xed\x9f\xbf\xee\x80\x80\xef\xbf\xbf", 12, 12},
                 {"\xf0\x90\x80\x80\xf4\x8f\xbf\xbf", 8, 8},
                 {"\xc1\xbf", 2, 0},
                 {"\xe0\x9f\xbf", 3, 0},
                 {"\xed\xa0\x80", 3, 0},
                 {"\xf0\x8f\xbf\xbf", 4, 0},
                 {"\xf4\x90\x80\x80", 4, 0},
                 {"\xf5\x80\x80\x80", 4, 0},
                 {"12345678\xff", 9, 8},
                 {"ab\xe2\x82", 4, 2},
                 {"ab\xe2\x28\xa1", 5, 2},
                 {"a\0b", 3, 3}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *copy = malloc(cases[i].len + 1);
        memcpy(copy, cases[i].text, cases[i].len);
        copy = realloc(copy, cases[i].len == 0 ? 1 : cases[i].len);
        ck_assert_msg(utf8_valid_len(copy, cases[i].len) == cases[i].valid, "case %zu", i);
        free(copy);
    }
}
END_TEST

START_TEST(bytes_on_the_wire)
{
    /* What version 1 sends, so that a change of the format cannot go unseen. */
    struct msg_out out = {0};
    struct msg_ack ack = {.fence = 7, .batch = 300};
    ck_assert_int_eq(msg_encode(MSG_ACK_TYPE, &ack, 0x01020304, &out, &err), 0);
    static const unsigned char body[] = {0x82, 0x01, 0x07, 0x02, 0xcd, 0x01, 0x2c};
    ck_assert_uint_eq(out.body_len, sizeof body);
    ck_assert_mem_eq(out.body, body, sizeof body);
    uint32_t crc = crc32c(body, sizeof body);
    const unsigned char header[] = {'K',
                                    'V',
                                    'F',
                                    'L',
                                    1,
                                    18,
                                    0,
                                    0,
                                    4,
                                    3,
                                    2,
                                    1,
                                    (unsigned char)crc,
                                    (unsigned char)(crc >> 8),
                                    (unsigned char)(crc >> 16),
                                    (unsigned char)(crc >> 24)};
    ck_assert_mem_eq(out.header, header, sizeof header);
    /* Absent values are not sent. */
    struct rec_result result;
    rec_result_init(&result);
    ck_assert(result.text.text == NULL && result.prompt_tokens == MSG_NULL_INT && isnan(result.batch_mean));
    result.sample_id = result.attempt = 1;
    result.finish = result.grade = result.grader = str_of("");
    struct msg_result message = {.fence = 1, .batch = 1, .results = &result, .n_results = 1};
    ck_assert_int_eq(msg_encode(MSG_RESULT_TYPE, &message, 1, &out, &err), 0);
    ck_assert_uint_eq((unsigned char)out.body[7], 0x86);
    msg_out_free(&out);
}
END_TEST

START_TEST(round_trip)
{
    struct msg_out out = {0};
    int n = 0;
    for (int type = 0; type < 256; type++) {
        const struct layout *layout = layout_of_type(type);
        for (int round = 0; layout != NULL && round < 60; round++) {
            random_state = (uint64_t)type << 32 | (uint64_t)round;
            void *message = pool_take(layout->size);
            record_fill(layout, message);
            uint32_t sequence = (uint32_t)random_next();
            ck_assert_msg(msg_encode(type, message, sequence, &out, &err) == 0, "%s", err.text);
            struct msg_in in;
            ck_assert_msg(msg_decode(out.header, MSG_HEADER_BYTES, out.body, out.body_len, &in, &err) == 0, "%s",
                          err.text);
            ck_assert_int_eq(in.type, type);
            ck_assert_uint_eq(in.sequence, sequence);
            ck_assert_msg(record_equal(layout, message, in.body), "%s round %d", layout->name, round);
            msg_in_free(&in);
            pool_free();
            n++;
        }
    }
    ck_assert_int_eq(n, 18 * 60);
    msg_out_free(&out);
}
END_TEST

START_TEST(empty_is_not_absent)
{
    struct rec_result result;
    rec_result_init(&result);
    result.sample_id = result.attempt = 1;
    result.finish = result.grade = result.grader = result.text = str_of("");
    struct msg_result message = {.fence = 1, .batch = 1, .results = &result, .n_results = 1};
    struct msg_out out = {0};
    struct msg_in in;
    ck_assert_int_eq(msg_encode(MSG_RESULT_TYPE, &message, 1, &out, &err), 0);
    ck_assert_msg(msg_decode(out.header, MSG_HEADER_BYTES, out.body, out.body_len, &in, &err) == 0, "%s", err.text);
    const struct rec_result *got = ((const struct msg_result *)in.body)->results;
    ck_assert_ptr_nonnull(got->text.text);
    ck_assert_uint_eq(got->text.len, 0);
    ck_assert_ptr_null(got->error.text);
    msg_in_free(&in);
    msg_out_free(&out);
}
END_TEST

START_TEST(equal_finds_differences)
{
    struct msg_ack a = {.fence = 1, .batch = 2}, b = {.fence = 1, .batch = 3};
    ck_assert(!record_equal(layout_of_type(MSG_ACK_TYPE), &a, &b));
    struct msg_bye c = {.reason = str_of("a")}, d = {.reason = str_of("b")};
    ck_assert(!record_equal(layout_of_type(MSG_BYE_TYPE), &c, &d));
}
END_TEST

/* Every harm to every field of `harmed`, which is the message or a record in it. */
static int harm_all(int type, const struct layout *harmed)
{
    int n = 0;
    for (int field = 0; field < harmed->n_fields; field++)
        for (int harm = HARM_MISSING; harm < HARM_COUNT; harm++)
            for (int variant = 0; variant < 8; variant++) {
                struct bytes body = {0};
                struct plan plan = {harmed, field, (enum harm)harm, variant, 0};
                record_write(&body, layout_of_type(type), &plan);
                if (plan.done) {
                    int code = decode_once(type, body.at, body.len);
                    ck_assert_msg(code == KVF_ECORRUPT, "%s: %s.%s harm %d variant %d: %d", msg_name(type),
                                  harmed->name, harmed->fields[field].name, harm, variant, code);
                    ck_assert_msg(strstr(err.text, msg_name(type)) != NULL, "%s", err.text);
                    /* The line names the field; unless a record is too short to be one, or the whole too large. */
                    int is_named = strstr(err.text, harmed->fields[field].name) != NULL;
                    int is_short = harm == HARM_MISSING && strstr(err.text, "expected at least ") != NULL;
                    int is_large =
                        harm == HARM_OVER && (body.len > MSG_BODY_MAX || strstr(err.text, "more than 262144"));
                    ck_assert_msg(is_named || is_short || is_large, "%s: %s", harmed->fields[field].name, err.text);
                    n++;
                }
                free(body.at);
            }
    return n;
}

START_TEST(each_field_is_checked)
{
    int n = 0;
    for (int type = 0; type < 256; type++) {
        const struct layout *layout = layout_of_type(type);
        if (layout == NULL) continue;
        struct bytes body = {0};
        record_write(&body, layout, NULL);
        ck_assert_msg(decode_once(type, body.at, body.len) == 0, "%s: %s", layout->name, err.text);
        free(body.at);
        n += harm_all(type, layout);
        for (int i = 0; i < layout->n_fields; i++)
            if (layout->fields[i].kind == 'L') n += harm_all(type, layout->places[i].record());
    }
    ck_assert_int_gt(n, 2000);
}
END_TEST

START_TEST(encoder_checks_too)
{
    struct msg_out out = {0};
    struct msg_ack ack = {.fence = 0, .batch = 1};
    ck_assert_int_eq(msg_encode(MSG_ACK_TYPE, &ack, 1, &out, &err), KVF_EINVAL);
    ck_assert_str_eq(err.text, "message ACK, field fence: expected 1 to 9223372036854775807, got 0");
    struct msg_goaway goaway = {.code = str_of("a code of more than thirty-one bytes"), .reason = str_of("")};
    ck_assert_int_eq(msg_encode(MSG_GOAWAY_TYPE, &goaway, 1, &out, &err), KVF_EINVAL);
    ck_assert_str_eq(err.text, "message GOAWAY, field code: expected at most 31 bytes, got 36");
    goaway.code = (struct str){"a\xff", 2};
    ck_assert_int_eq(msg_encode(MSG_GOAWAY_TYPE, &goaway, 1, &out, &err), KVF_EINVAL);
    ck_assert_str_eq(err.text, "message GOAWAY, field code: expected UTF-8, got byte ff at offset 1");
    goaway.code = (struct str){NULL, 2};
    ck_assert_int_eq(msg_encode(MSG_GOAWAY_TYPE, &goaway, 1, &out, &err), KVF_EINVAL);
    struct msg_ready ready = {.credit = 1, .n_leases = 1, .rss_bytes = MSG_NULL_INT, .tokens_per_s = 1};
    ck_assert_int_eq(msg_encode(MSG_READY_TYPE, &ready, 1, &out, &err), KVF_EINVAL);
    struct rec_fence fences[] = {{5}, {0}};
    ready.leases = fences;
    ready.n_leases = 2;
    ck_assert_int_eq(msg_encode(MSG_READY_TYPE, &ready, 1, &out, &err), KVF_EINVAL);
    ck_assert_str_eq(err.text, "message READY, field leases[1].fence: expected 1 to 9223372036854775807, got 0");
    ready.n_leases = 1;
    ready.tokens_per_s = -INFINITY;
    ck_assert_int_eq(msg_encode(MSG_READY_TYPE, &ready, 1, &out, &err), KVF_EINVAL);
    ready.tokens_per_s = NAN;
    ck_assert_int_eq(msg_encode(MSG_READY_TYPE, &ready, 1, &out, &err), 0);
    ready.n_leases = 4097;
    ck_assert_int_eq(msg_encode(MSG_READY_TYPE, &ready, 1, &out, &err), KVF_EINVAL);
    ck_assert_int_eq(msg_encode(200, &ready, 1, &out, &err), KVF_EINVAL);
    /* Sixty-four problems of 256 KiB are each within their limit, but not together. */
    char *text = malloc(262144);
    memset(text, 'x', 262144);
    struct rec_problem problems[64];
    for (int i = 0; i < 64; i++)
        problems[i] = (struct rec_problem){str_of("n"), str_of("h"), 0, {text, 262144}, str_of("a")};
    struct msg_problems many = {.request = 1, .job_id = 1, .problems = problems, .n_problems = 64};
    ck_assert_int_eq(msg_encode(MSG_PROBLEMS_TYPE, &many, 1, &out, &err), KVF_EINVAL);
    ck_assert_str_eq(err.text, "message PROBLEMS: expected a body of at most 4194304 bytes, got more");
    many.n_problems = 15;
    ck_assert_int_eq(msg_encode(MSG_PROBLEMS_TYPE, &many, 1, &out, &err), 0);
    ck_assert_uint_le(out.body_len, MSG_BODY_MAX);
    free(text);
    msg_out_free(&out);
    ck_assert_ptr_null(out.body);
}
END_TEST

/* A good body of the type. */
static struct bytes body_of(int type)
{
    struct bytes body = {0};
    record_write(&body, layout_of_type(type), NULL);
    return body;
}

START_TEST(headers_are_checked)
{
    struct bytes body = body_of(MSG_ACK_TYPE);
    unsigned char good[MSG_HEADER_BYTES + 1] = {0}, bad[MSG_HEADER_BYTES];
    struct msg_in in;
    header_write(good, MSG_ACK_TYPE, body.at, body.len);
    ck_assert_int_eq(msg_decode(good, MSG_HEADER_BYTES, body.at, body.len, &in, &err), 0);
    ck_assert_uint_eq(in.sequence, 0x12345678);
    msg_in_free(&in);
    for (size_t len = 0; len <= MSG_HEADER_BYTES + 1; len++)
        if (len != MSG_HEADER_BYTES)
            ck_assert_int_eq(msg_decode(good, len, body.at, body.len, &in, &err), KVF_ECORRUPT);
    for (int at = 0; at < MSG_HEADER_BYTES; at++) {
        if (at >= 8 && at < 12) continue; /* the sequence number may be any */
        for (int bit = 0; bit < 8; bit++) {
            memcpy(bad, good, sizeof bad);
            bad[at] ^= (unsigned char)(1 << bit);
            ck_assert_int_eq(msg_decode(bad, sizeof bad, body.at, body.len, &in, &err), KVF_ECORRUPT);
        }
    }
    ck_assert_int_eq(decode_once(MSG_ACK_TYPE, "", 0), KVF_ECORRUPT);
    ck_assert_int_eq(decode_once(0, body.at, body.len), KVF_ECORRUPT);
    ck_assert_int_eq(decode_once(99, body.at, body.len), KVF_ECORRUPT);
    ck_assert_str_eq(err.text, "message header: expected a known type, got 99");
    char *big = calloc(1, MSG_BODY_MAX + 1);
    ck_assert_int_eq(decode_once(MSG_ACK_TYPE, big, MSG_BODY_MAX + 1), KVF_ECORRUPT);
    free(big);
    free(body.at);
}
END_TEST

START_TEST(every_truncation_is_refused)
{
    for (int type = 0; type < 256; type++) {
        if (layout_of_type(type) == NULL) continue;
        struct bytes body = body_of(type);
        for (size_t len = 0; len < body.len; len++)
            ck_assert_msg(decode_once(type, body.at, len) == KVF_ECORRUPT, "%s cut at %zu", msg_name(type), len);
        bytes_put(&body, "\xc0", 1);
        ck_assert_int_eq(decode_once(type, body.at, body.len), KVF_ECORRUPT);
        ck_assert_ptr_nonnull(strstr(err.text, "bytes after the end"));
        free(body.at);
    }
}
END_TEST

START_TEST(bit_flips)
{
    random_state = 11;
    for (int type = 0; type < 256; type++) {
        if (layout_of_type(type) == NULL) continue;
        struct bytes body = body_of(type);
        unsigned char header[MSG_HEADER_BYTES];
        header_write(header, type, body.at, body.len);
        for (int round = 0; round < 3000; round++) {
            unsigned char *copy = malloc(body.len);
            memcpy(copy, body.at, body.len);
            int flips = 1 + (int)random_below(3);
            for (int k = 0; k < flips; k++) copy[random_below(body.len)] ^= (unsigned char)(1u << random_below(8));
            struct msg_in in;
            /* The old checksum finds every flip; with a new one the body must be refused or be a message within limits.
             */
            if (memcmp(copy, body.at, body.len) != 0)
                ck_assert_int_eq(msg_decode(header, sizeof header, copy, body.len, &in, &err), KVF_ECORRUPT);
            int code = decode_once(type, copy, body.len);
            ck_assert(code == 0 || code == KVF_ECORRUPT);
            if (code == 0) {
                struct msg_out out = {0};
                unsigned char again[MSG_HEADER_BYTES];
                header_write(again, type, copy, body.len);
                ck_assert_int_eq(msg_decode(again, sizeof again, copy, body.len, &in, &err), 0);
                ck_assert_msg(msg_encode(type, in.body, 1, &out, &err) == 0, "%s", err.text);
                msg_out_free(&out);
                msg_in_free(&in);
            }
            free(copy);
        }
        free(body.at);
    }
}
END_TEST

START_TEST(random_bytes)
{
    random_state = 5;
    for (int round = 0; round < 200000; round++) {
        unsigned char body[64];
        size_t len = 1 + random_below(sizeof body);
        for (size_t i = 0; i < len; i++) body[i] = (unsigned char)random_next();
        /* Half of them start as a map with key 1, to get further in. */
        if (round & 1) body[0] = 0x81 + (unsigned char)random_below(4);
        if ((round & 1) && len > 1) body[1] = 1;
        int code = decode_once(1 + (int)random_below(5), body, len);
        ck_assert(code == 0 || code == KVF_ECORRUPT);
    }
}
END_TEST

START_TEST(hostile_counts)
{
    static const struct {
        const char *body;
        size_t len;
    } cases[] = {{"\xdd\xff\x00\x00\x00", 5},
                 {"\xdd\x10\x00\x00\x00", 5},
                 {"\xdf\x10\x00\x00\x00", 5},
                 {"\xdf\xff\xff\xff\xff", 5},
                 {"\xde\xff\xff", 3},
                 {"\xdc\xff\xff", 3},
                 {"\xdb\xff\xff\xff\xff", 5},
                 {"\xda\xff\xff", 3},
                 {"\xd9\xff", 2},
                 {"\xc6\xff\xff\xff\xff", 5},
                 {"\xc5\x00", 2},
                 {"\xc9\xff\xff\xff\xff\x01", 6},
                 {"\xd4\x01\x00", 3},
                 {"\xc7\x00\x01", 3},
                 {"\xc1", 1},
                 {"\xcf\x00", 2},
                 {"\xcb\x00\x00\x00", 4},
                 {"\x8f", 1},
                 {"\x9f\x00", 2},
                 {"\xbf", 1}};
    size_t at;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ck_assert_msg(scan_body(cases[i].body, cases[i].len, &at) != NULL, "case %zu", i);
        ck_assert_int_eq(decode_once(MSG_ACK_TYPE, cases[i].body, cases[i].len), KVF_ECORRUPT);
    }
    /* Depth: eight containers, not nine. */
    unsigned char deep[] = {0x91, 0x91, 0x91, 0x91, 0x91, 0x91, 0x91, 0x91, 0x91, 0xc0};
    ck_assert_ptr_nonnull(scan_body(deep, sizeof deep, &at));
    ck_assert_ptr_null(scan_body(deep + 1, sizeof deep - 1, &at));
    /* Many small containers within the bytes, but over the budget of values. */
    struct bytes body = {0};
    put_head(&body, 0xdd, 300000, 4);
    for (int i = 0; i < 300000; i++) put_head(&body, 0xc0, 0, 0);
    ck_assert_str_eq(scan_body(body.at, body.len, &at), "more than 262144 values");
    ck_assert_int_eq(decode_once(MSG_ACK_TYPE, body.at, body.len), KVF_ECORRUPT);
    body.len = 0;
    put_head(&body, 0xdd, 1000, 4);
    for (int k = 0; k < 1000; k++) {
        put_head(&body, 0xdc, 1000, 2);
        for (int i = 0; i < 1000; i++) put_head(&body, 0xc0, 0, 0);
    }
    ck_assert_str_eq(scan_body(body.at, body.len, &at), "more than 262144 values");
    free(body.at);
}
END_TEST

START_TEST(keys_are_checked)
{
    static const unsigned char text_key[] = {0x81, 0xa1, 'x', 0x01}, zero[] = {0x81, 0x00, 0x01},
                               negative[] = {0x81, 0xff, 0x01}, large[] = {0x81, 0xcd, 0x01, 0x00, 0x01},
                               array[] = {0x92, 0x01, 0x02}, number[] = {0x07};
    ck_assert_int_eq(decode_once(MSG_ACK_TYPE, text_key, sizeof text_key), KVF_ECORRUPT);
    ck_assert_str_eq(err.text, "message ACK, field key: expected an integer of 1 to 255, got text");
    ck_assert_int_eq(decode_once(MSG_ACK_TYPE, zero, sizeof zero), KVF_ECORRUPT);
    ck_assert_int_eq(decode_once(MSG_ACK_TYPE, negative, sizeof negative), KVF_ECORRUPT);
    ck_assert_int_eq(decode_once(MSG_ACK_TYPE, large, sizeof large), KVF_ECORRUPT);
    ck_assert_int_eq(decode_once(MSG_ACK_TYPE, array, sizeof array), KVF_ECORRUPT);
    ck_assert_str_eq(err.text, "message ACK: expected a map, got an array");
    ck_assert_int_eq(decode_once(MSG_ACK_TYPE, number, sizeof number), KVF_ECORRUPT);
    /* Keys of a newer version are skipped, whatever they hold, but not when they come twice. */
    static const unsigned char newer[] = {0x84, 0x01, 0x07, 0xcc, 0xc8, 0x82, 0xa1, 'k', 0x91, 0xc0, 0x01, 0xc3, 0x02,
                                          0x09, 0xcc, 0xff, 0xcb, 0x7f, 0xf8, 0,    0,   0,    0,    0,    0};
    struct msg_in in;
    void *copy;
    ck_assert_msg(decode_copy(MSG_ACK_TYPE, newer, sizeof newer, &in, &copy) == 0, "%s", err.text);
    ck_assert_uint_eq(((const struct msg_ack *)in.body)->fence, 7);
    ck_assert_uint_eq(((const struct msg_ack *)in.body)->batch, 9);
    msg_in_free(&in);
    free(copy);
    static const unsigned char twice[] = {0x84, 0x01, 0x07, 0xcc, 0xc8, 0x01, 0x02, 0x09, 0xcc, 0xc8, 0x01};
    ck_assert_int_eq(decode_once(MSG_ACK_TYPE, twice, sizeof twice), KVF_ECORRUPT);
    ck_assert_str_eq(err.text, "message ACK, field key: expected it once, got key 200 twice");
}
END_TEST

/* Bytes of the arena: what a decoded message holds beside the frame. */
static size_t result_arena_bytes(uint32_t n)
{
    return sizeof(struct msg_result) + n * sizeof(struct rec_result);
}

START_TEST(arena_follows_the_frame)
{
    /* The least wire bytes that get a full list: six required fields an item. */
    struct bytes body = {0};
    const struct layout *record = layout_of_record("result");
    ck_assert_int_eq(record->n_required, 6);
    put_head(&body, 0x83, 0, 0);
    bytes_put(&body, "\x01\x01\x02\x01\x03\xdc\x01\x00", 8);
    for (int i = 0; i < 256; i++) bytes_put(&body, "\x86\x01\x01\x02\x01\x03\xa0\x1c\xa0\x1f\xa0\x21\x00", 13);
    ck_assert_msg(decode_once(MSG_RESULT_TYPE, body.at, body.len) == 0, "%s", err.text);
    ck_assert_uint_lt(result_arena_bytes(256), 32 * body.len);
    /* 256 items that are too short to be one cost nothing. */
    body.len = 9;
    for (int i = 0; i < 256; i++) bytes_put(&body, "\x80", 1);
    ck_assert_int_eq(decode_once(MSG_RESULT_TYPE, body.at, body.len), KVF_ECORRUPT);
    ck_assert_ptr_nonnull(strstr(err.text, "results[0].result: expected at least 6 fields, got 0"));
    free(body.at);
}
END_TEST

START_TEST(free_is_safe)
{
    struct msg_in in = {0};
    struct msg_out out = {0};
    msg_in_free(&in);
    msg_in_free(&in);
    msg_in_free(NULL);
    msg_out_free(&out);
    msg_out_free(NULL);
    ck_assert_ptr_null(str_of(NULL).text);
    ck_assert_uint_eq(str_of("abc").len, 3);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("message");
    TCase *tc = tcase_create("message");
    tcase_set_timeout(tc, 300);
    tcase_add_test(tc, tables_are_sound);
    tcase_add_test(tc, checksum_is_castagnoli);
    tcase_add_test(tc, utf8_boundaries);
    tcase_add_test(tc, bytes_on_the_wire);
    tcase_add_test(tc, round_trip);
    tcase_add_test(tc, empty_is_not_absent);
    tcase_add_test(tc, equal_finds_differences);
    tcase_add_test(tc, each_field_is_checked);
    tcase_add_test(tc, encoder_checks_too);
    tcase_add_test(tc, headers_are_checked);
    tcase_add_test(tc, every_truncation_is_refused);
    tcase_add_test(tc, bit_flips);
    tcase_add_test(tc, random_bytes);
    tcase_add_test(tc, hostile_counts);
    tcase_add_test(tc, keys_are_checked);
    tcase_add_test(tc, arena_follows_the_frame);
    tcase_add_test(tc, free_is_safe);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
