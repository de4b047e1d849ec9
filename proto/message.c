#include "proto/message.h"

#include <inttypes.h>
#include <msgpack.h>
#include <stdlib.h>
#include <string.h>
#include "proto/crc32c.h"
#include "proto/message_table.h"
#include "proto/scan.h"
#include "proto/utf8.h"

/* Header: 0 magic, 4 protocol major, 5 type, 6 zero, 8 sequence, 12 CRC-32C of the body; numbers little endian. */
static const unsigned char magic[4] = {'K', 'V', 'F', 'L'};
enum { AT_MAJOR = 4, AT_TYPE = MSG_HEADER_TYPE_AT, AT_ZERO = 6, AT_SEQUENCE = 8, AT_CHECKSUM = 12 };
_Static_assert(AT_CHECKSUM + 4 == MSG_HEADER_BYTES, "the checksum ends the header");

struct str str_of(const char *text)
{
    return (struct str){text, text == NULL ? 0 : (uint32_t)strlen(text)};
}

static void u32_put(unsigned char *at, uint32_t value)
{
    for (int i = 0; i < 4; i++) at[i] = (unsigned char)(value >> 8 * i);
}

static uint32_t u32_get(const unsigned char *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

/* ---- where in a message: for the error line ---- */

struct where {
    const char *message, *list; /* list: NULL at the top */
    uint32_t index;
};

__attribute__((format(printf, 5, 6))) static int where_fail(struct kvf_err *err, int code, const struct where *where,
                                                            const char *field, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (where->list == NULL) return kvf_fail(err, code, "message %s, field %s: %s", where->message, field, text);
    return kvf_fail(err, code, "message %s, field %s[%u].%s: %s", where->message, where->list, where->index, field,
                    text);
}

static uint32_t place_count(const struct place *place, const void *record)
{
    return *(const uint32_t *)((const char *)record + place->count_offset);
}

/* ---- limits: the same for what is sent and what is received ---- */

static int check_unsigned(const struct msg_field *field, uint64_t value, int code, const struct where *where,
                          struct kvf_err *err)
{
    if (value >= (uint64_t)field->min && value <= field->max) return 0;
    return where_fail(err, code, where, field->name, "expected %" PRId64 " to %" PRIu64 ", got %" PRIu64, field->min,
                      field->max, value);
}

static int check_signed(const struct msg_field *field, int64_t value, int code, const struct where *where,
                        struct kvf_err *err)
{
    if (value >= field->min && value <= (int64_t)field->max) return 0;
    return where_fail(err, code, where, field->name, "expected %" PRId64 " to %" PRId64 ", got %" PRId64, field->min,
                      (int64_t)field->max, value);
}

static int check_text(const struct msg_field *field, const char *text, uint32_t len, int code,
                      const struct where *where, struct kvf_err *err)
{
    if (len > field->max)
        return where_fail(err, code, where, field->name, "expected at most %" PRIu64 " bytes, got %" PRIu32, field->max,
                          len);
    size_t valid = utf8_valid_len(text, len);
    if (valid == len) return 0;
    return where_fail(err, code, where, field->name, "expected UTF-8, got byte %02x at offset %zu",
                      (unsigned char)text[valid], valid);
}

static int check_count(const struct msg_field *field, uint32_t count, int code, const struct where *where,
                       struct kvf_err *err)
{
    if (count <= field->max) return 0;
    return where_fail(err, code, where, field->name, "expected at most %" PRIu64 " items, got %" PRIu32, field->max,
                      count);
}

static int check_finite(const struct msg_field *field, double value, int code, const struct where *where,
                        struct kvf_err *err)
{
    if (isfinite(value)) return 0;
    return where_fail(err, code, where, field->name, "expected a finite number, got %g", value);
}

/* ---- encode ---- */

/* Checks a struct before anything of it is written; `present` counts the fields that will be. */
static int record_check(const struct layout *layout, const void *record, const struct where *where, struct kvf_err *err)
{
    for (int i = 0; i < layout->n_fields; i++) {
        const struct msg_field *field = &layout->fields[i];
        const struct place *place = &layout->places[i];
        const void *member = (const char *)record + place->offset;
        const struct str *text = member;
        int code = 0;
        switch (field->kind) {
        case 'U':
            code = check_unsigned(field, *(const uint64_t *)member, KVF_EINVAL, where, err);
            break;
        case 'I':
            code = check_signed(field, *(const int64_t *)member, KVF_EINVAL, where, err);
            break;
        case 'M':
            break;
        case 'F':
            if (!isnan(*(const double *)member))
                code = check_finite(field, *(const double *)member, KVF_EINVAL, where, err);
            break;
        case 'S':
        case 'O':
            if (text->text == NULL && text->len != 0)
                code = where_fail(err, KVF_EINVAL, where, field->name, "expected text, got NULL and %" PRIu32 " bytes",
                                  text->len);
            else
                code = check_text(field, text->text, text->len, KVF_EINVAL, where, err);
            break;
        default: {
            uint32_t count = place_count(place, record);
            code = check_count(field, count, KVF_EINVAL, where, err);
            if (code != 0) break;
            const char *items = *(const char *const *)member;
            if (count > 0 && items == NULL)
                code = where_fail(err, KVF_EINVAL, where, field->name, "expected items, got NULL and %" PRIu32, count);
            for (uint32_t k = 0; k < count && code == 0; k++) {
                struct where inside = {where->message, field->name, k};
                if (field->kind == 'D')
                    code = check_finite(field, ((const double *)(const void *)items)[k], KVF_EINVAL, where, err);
                else
                    code = record_check(place->record(), items + k * place->record()->size, &inside, err);
            }
        }
        }
        if (code != 0) return code;
    }
    return 0;
}

static int member_present(char kind, const void *member)
{
    if (kind == 'M') return *(const int64_t *)member != MSG_NULL_INT;
    if (kind == 'F') return !isnan(*(const double *)member);
    if (kind == 'O') return ((const struct str *)member)->text != NULL;
    return 1;
}

/* Where the packer writes: grows the body up to MSG_BODY_MAX. */
struct sink {
    struct msg_out *out;
    int code;
};

static int sink_write(void *data, const char *bytes, size_t len)
{
    struct sink *sink = data;
    struct msg_out *out = sink->out;
    if (len > MSG_BODY_MAX - out->body_len) {
        sink->code = KVF_EINVAL;
        return -1;
    }
    if (out->body_len + len > out->body_cap) {
        size_t cap = out->body_cap < 512 ? 512 : out->body_cap * 2;
        while (cap < out->body_len + len) cap *= 2;
        char *body = realloc(out->body, cap);
        if (body == NULL) {
            sink->code = KVF_ENOMEM;
            return -1;
        }
        out->body = body;
        out->body_cap = cap;
    }
    if (len > 0) memcpy(out->body + out->body_len, bytes, len);
    out->body_len += len;
    return 0;
}

static int record_pack(msgpack_packer *packer, const struct layout *layout, const void *record)
{
    uint32_t present = 0;
    for (int i = 0; i < layout->n_fields; i++)
        present += member_present(layout->fields[i].kind, (const char *)record + layout->places[i].offset) != 0;
    if (msgpack_pack_map(packer, present) != 0) return -1;
    for (int i = 0; i < layout->n_fields; i++) {
        const struct msg_field *field = &layout->fields[i];
        const struct place *place = &layout->places[i];
        const void *member = (const char *)record + place->offset;
        if (!member_present(field->kind, member)) continue;
        int code = msgpack_pack_int(packer, field->key);
        switch (field->kind) {
        case 'U':
            code |= msgpack_pack_uint64(packer, *(const uint64_t *)member);
            break;
        case 'I':
        case 'M':
            code |= msgpack_pack_int64(packer, *(const int64_t *)member);
            break;
        case 'F':
            code |= msgpack_pack_double(packer, *(const double *)member);
            break;
        case 'S':
        case 'O':
            code |= msgpack_pack_str_with_body(packer, ((const struct str *)member)->text,
                                               ((const struct str *)member)->len);
            break;
        default: {
            uint32_t count = place_count(place, record);
            const char *items = *(const char *const *)member;
            code |= msgpack_pack_array(packer, count);
            for (uint32_t k = 0; k < count && code == 0; k++) {
                if (field->kind == 'D')
                    code = msgpack_pack_double(packer, ((const double *)(const void *)items)[k]);
                else
                    code = record_pack(packer, place->record(), items + k * place->record()->size);
            }
        }
        }
        if (code != 0) return -1;
    }
    return 0;
}

int msg_encode(int type, const void *msg, uint32_t sequence, struct msg_out *out, struct kvf_err *err)
{
    const struct layout *layout = layout_of_type(type);
    if (layout == NULL) return kvf_fail(err, KVF_EINVAL, "message type %d: expected one of messages.def", type);
    struct where where = {layout->name, NULL, 0};
    int code = record_check(layout, msg, &where, err);
    if (code != 0) return code;

    struct sink sink = {out, 0};
    msgpack_packer packer;
    msgpack_packer_init(&packer, &sink, sink_write);
    out->body_len = 0;
    if (record_pack(&packer, layout, msg) != 0) {
        if (sink.code == KVF_ENOMEM) return kvf_fail(err, KVF_ENOMEM, "message %s: out of memory", layout->name);
        return kvf_fail(err, KVF_EINVAL, "message %s: expected a body of at most %u bytes, got more", layout->name,
                        MSG_BODY_MAX);
    }
    memcpy(out->header, magic, sizeof magic);
    out->header[AT_MAJOR] = MSG_PROTO_MAJOR;
    out->header[AT_TYPE] = (unsigned char)type;
    out->header[AT_ZERO] = out->header[AT_ZERO + 1] = 0;
    u32_put(out->header + AT_SEQUENCE, sequence);
    u32_put(out->header + AT_CHECKSUM, crc32c(out->body, out->body_len));
    return 0;
}

void msg_out_free(struct msg_out *out)
{
    if (out == NULL) return;
    free(out->body);
    *out = (struct msg_out){0};
}

/* ---- decode ---- */

/* The struct and its lists: a chain of blocks, freed together. */
struct block {
    struct block *next;
    max_align_t data[];
};

static void *arena_take(struct msg_in *in, size_t bytes)
{
    struct block *block = calloc(1, sizeof *block + bytes);
    if (block == NULL) return NULL;
    block->next = in->arena;
    in->arena = block;
    return block->data;
}

void msg_in_free(struct msg_in *in)
{
    if (in == NULL) return;
    for (struct block *block = in->arena, *next; block != NULL; block = next) {
        next = block->next;
        free(block);
    }
    *in = (struct msg_in){0};
}

static const char *object_kind(const msgpack_object *object)
{
    switch (object->type) {
    case MSGPACK_OBJECT_NIL:
        return "nil";
    case MSGPACK_OBJECT_BOOLEAN:
        return "a boolean";
    case MSGPACK_OBJECT_POSITIVE_INTEGER:
    case MSGPACK_OBJECT_NEGATIVE_INTEGER:
        return "an integer";
    case MSGPACK_OBJECT_FLOAT32:
    case MSGPACK_OBJECT_FLOAT64:
        return "a float";
    case MSGPACK_OBJECT_STR:
        return "text";
    case MSGPACK_OBJECT_BIN:
        return "binary";
    case MSGPACK_OBJECT_ARRAY:
        return "an array";
    case MSGPACK_OBJECT_MAP:
        return "a map";
    default:
        return "an extension";
    }
}

static int is_float(const msgpack_object *object)
{
    return object->type == MSGPACK_OBJECT_FLOAT32 || object->type == MSGPACK_OBJECT_FLOAT64;
}

static int wrong_kind(struct kvf_err *err, const struct where *where, const char *field, const char *expected,
                      const msgpack_object *object)
{
    return where_fail(err, KVF_ECORRUPT, where, field, "expected %s, got %s", expected, object_kind(object));
}

static int record_unpack(struct msg_in *in, const struct layout *layout, const msgpack_object *object, void *record,
                         const struct where *where, struct kvf_err *err);

static int list_unpack(struct msg_in *in, const struct msg_field *field, const struct place *place,
                       const msgpack_object *object, void *record, const struct where *where, struct kvf_err *err)
{
    if (object->type != MSGPACK_OBJECT_ARRAY) return wrong_kind(err, where, field->name, "an array", object);
    uint32_t count = object->via.array.size;
    const msgpack_object *items = object->via.array.ptr;
    int code = check_count(field, count, KVF_ECORRUPT, where, err);
    if (code != 0) return code;
    const struct layout *item_layout = field->kind == 'L' ? place->record() : NULL;
    /* All items are looked at before room is made for any: an item that can be a record has bytes on the wire in
     * proportion to its struct, so the arena stays a small multiple of the frame. */
    for (uint32_t k = 0; k < count; k++) {
        struct where inside = {where->message, field->name, k};
        if (item_layout == NULL) {
            if (!is_float(&items[k])) return wrong_kind(err, where, field->name, "floats", &items[k]);
            code = check_finite(field, items[k].via.f64, KVF_ECORRUPT, where, err);
            if (code != 0) return code;
        } else if (items[k].type != MSGPACK_OBJECT_MAP) {
            return wrong_kind(err, &inside, item_layout->name, "a map", &items[k]);
        } else if (items[k].via.map.size < (uint32_t)item_layout->n_required) {
            return where_fail(err, KVF_ECORRUPT, &inside, item_layout->name,
                              "expected at least %d fields, got %" PRIu32, item_layout->n_required,
                              items[k].via.map.size);
        }
    }
    size_t size = item_layout == NULL ? sizeof(double) : item_layout->size;
    char *list = NULL;
    if (count > 0 && (list = arena_take(in, count * size)) == NULL)
        return where_fail(err, KVF_ENOMEM, where, field->name, "out of memory for %" PRIu32 " items", count);
    for (uint32_t k = 0; k < count; k++) {
        struct where inside = {where->message, field->name, k};
        if (item_layout == NULL)
            memcpy(list + k * size, &items[k].via.f64, size);
        else if ((code = record_unpack(in, item_layout, &items[k], list + k * size, &inside, err)) != 0)
            return code;
    }
    *(void **)((char *)record + place->offset) = list;
    *(uint32_t *)((char *)record + place->count_offset) = count;
    return 0;
}

static int field_unpack(struct msg_in *in, const struct msg_field *field, const struct place *place,
                        const msgpack_object *object, void *record, const struct where *where, struct kvf_err *err)
{
    void *member = (char *)record + place->offset;
    int code;
    switch (field->kind) {
    case 'U':
        if (object->type != MSGPACK_OBJECT_POSITIVE_INTEGER)
            return wrong_kind(err, where, field->name, "an integer that is not negative", object);
        code = check_unsigned(field, object->via.u64, KVF_ECORRUPT, where, err);
        if (code == 0) *(uint64_t *)member = object->via.u64;
        return code;
    case 'I':
    case 'M':
        if (object->type == MSGPACK_OBJECT_POSITIVE_INTEGER) {
            if (object->via.u64 > INT64_MAX)
                return where_fail(err, KVF_ECORRUPT, where, field->name, "expected at most %" PRId64 ", got %" PRIu64,
                                  INT64_MAX, object->via.u64);
        } else if (object->type != MSGPACK_OBJECT_NEGATIVE_INTEGER) {
            return wrong_kind(err, where, field->name, "an integer", object);
        }
        code = check_signed(field, object->via.i64, KVF_ECORRUPT, where, err);
        if (code == 0) *(int64_t *)member = object->via.i64;
        return code;
    case 'F':
        if (!is_float(object)) return wrong_kind(err, where, field->name, "a float", object);
        code = check_finite(field, object->via.f64, KVF_ECORRUPT, where, err);
        if (code == 0) *(double *)member = object->via.f64;
        return code;
    case 'S':
    case 'O':
        if (object->type != MSGPACK_OBJECT_STR) return wrong_kind(err, where, field->name, "text", object);
        code = check_text(field, object->via.str.ptr, object->via.str.size, KVF_ECORRUPT, where, err);
        /* The unpacker gives no pointer for empty text, but only absent text has none here. */
        if (code == 0)
            *(struct str *)member =
                (struct str){object->via.str.size == 0 ? "" : object->via.str.ptr, object->via.str.size};
        return code;
    default:
        return list_unpack(in, field, place, object, record, where, err);
    }
}

static int record_unpack(struct msg_in *in, const struct layout *layout, const msgpack_object *object, void *record,
                         const struct where *where, struct kvf_err *err)
{
    uint64_t seen[(MSG_KEY_MAX + 64) / 64] = {0};
    layout_init(layout, record);
    for (uint32_t k = 0; k < object->via.map.size; k++) {
        const msgpack_object *key = &object->via.map.ptr[k].key;
        if (key->type != MSGPACK_OBJECT_POSITIVE_INTEGER)
            return wrong_kind(err, where, "key", "an integer of 1 to 255", key);
        if (key->via.u64 < 1 || key->via.u64 > MSG_KEY_MAX)
            return where_fail(err, KVF_ECORRUPT, where, "key", "expected 1 to %d, got %" PRIu64, MSG_KEY_MAX,
                              key->via.u64);
        uint64_t bit = 1ull << (key->via.u64 & 63);
        int i = layout_find(layout, key->via.u64);
        if (seen[key->via.u64 >> 6] & bit)
            return where_fail(err, KVF_ECORRUPT, where, i < 0 ? "key" : layout->fields[i].name,
                              "expected it once, got key %" PRIu64 " twice", key->via.u64);
        seen[key->via.u64 >> 6] |= bit;
        if (i < 0) continue; /* of a newer version */
        int code =
            field_unpack(in, &layout->fields[i], &layout->places[i], &object->via.map.ptr[k].val, record, where, err);
        if (code != 0) return code;
    }
    for (int i = 0; i < layout->n_fields; i++) {
        const struct msg_field *field = &layout->fields[i];
        if (kind_is_required(field->kind) && !(seen[field->key >> 6] >> (field->key & 63) & 1))
            return where_fail(err, KVF_ECORRUPT, where, field->name, "expected key %d, got none", field->key);
    }
    return 0;
}

static int header_check(const unsigned char *header, size_t header_len, const void *body, size_t body_len,
                        struct kvf_err *err)
{
    if (header_len != MSG_HEADER_BYTES)
        return kvf_fail(err, KVF_ECORRUPT, "message header: expected %d bytes, got %zu", MSG_HEADER_BYTES, header_len);
    if (memcmp(header, magic, sizeof magic) != 0)
        return kvf_fail(err, KVF_ECORRUPT, "message header: expected magic 4b56464c, got %02x%02x%02x%02x", header[0],
                        header[1], header[2], header[3]);
    if (header[AT_MAJOR] != MSG_PROTO_MAJOR)
        return kvf_fail(err, KVF_ECORRUPT, "message header: expected protocol %d, got %d", MSG_PROTO_MAJOR,
                        header[AT_MAJOR]);
    if (layout_of_type(header[AT_TYPE]) == NULL)
        return kvf_fail(err, KVF_ECORRUPT, "message header: expected a known type, got %d", header[AT_TYPE]);
    const char *name = msg_name(header[AT_TYPE]);
    if (header[AT_ZERO] != 0 || header[AT_ZERO + 1] != 0)
        return kvf_fail(err, KVF_ECORRUPT, "message %s, header: expected zero flags, got %02x%02x", name,
                        header[AT_ZERO], header[AT_ZERO + 1]);
    if (body_len == 0 || body_len > MSG_BODY_MAX)
        return kvf_fail(err, KVF_ECORRUPT, "message %s: expected a body of 1 to %u bytes, got %zu", name, MSG_BODY_MAX,
                        body_len);
    uint32_t expected = u32_get(header + AT_CHECKSUM), got = crc32c(body, body_len);
    if (expected != got)
        return kvf_fail(err, KVF_ECORRUPT, "message %s: expected checksum %08x, got %08x", name, expected, got);
    return 0;
}

int msg_decode(const void *header, size_t header_len, const void *body, size_t body_len, struct msg_in *in,
               struct kvf_err *err)
{
    *in = (struct msg_in){0};
    const unsigned char *head = header;
    int code = header_check(head, header_len, body, body_len, err);
    if (code != 0) return code;
    const struct layout *layout = layout_of_type(head[AT_TYPE]);
    size_t at;
    const char *fault = scan_body(body, body_len, &at);
    if (fault != NULL)
        return kvf_fail(err, KVF_ECORRUPT, "message %s: expected MessagePack, got %s at byte %zu of %zu", layout->name,
                        fault, at, body_len);

    msgpack_unpacked unpacked;
    msgpack_unpacked_init(&unpacked);
    size_t used = 0;
    msgpack_unpack_return done = msgpack_unpack_next(&unpacked, body, body_len, &used);
    struct where where = {layout->name, NULL, 0};
    if (done == MSGPACK_UNPACK_NOMEM_ERROR)
        code = kvf_fail(err, KVF_ENOMEM, "message %s: out of memory for %zu bytes", layout->name, body_len);
    else if (done != MSGPACK_UNPACK_SUCCESS || used != body_len)
        code = kvf_fail(err, KVF_ECORRUPT, "message %s: expected MessagePack of %zu bytes, got %zu", layout->name,
                        body_len, used);
    else if (unpacked.data.type != MSGPACK_OBJECT_MAP)
        code = kvf_fail(err, KVF_ECORRUPT, "message %s: expected a map, got %s", layout->name,
                        object_kind(&unpacked.data));
    else if ((in->body = arena_take(in, layout->size)) == NULL)
        code = kvf_fail(err, KVF_ENOMEM, "message %s: out of memory", layout->name);
    else
        code = record_unpack(in, layout, &unpacked.data, in->body, &where, err);
    msgpack_unpacked_destroy(&unpacked);
    if (code != 0) {
        msg_in_free(in);
        return code;
    }
    in->type = head[AT_TYPE];
    in->sequence = u32_get(head + AT_SEQUENCE);
    return 0;
}
