/* message.h: wire messages as C structs, made from messages.def.
 *
 * On the wire a message is two ZeroMQ frames: a fixed 16-byte header (magic, protocol major, type, sequence number,
 * CRC-32C of the body) and a MessagePack map with integer keys (1 to 255) of at most MSG_BODY_MAX bytes.
 * `struct msg_hello` and so on have one member a field of the table; text is a `struct str` that is not NUL-terminated.
 */
#ifndef KVF_MESSAGE_H
#define KVF_MESSAGE_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include "alloc/err.h"
#include "proto/messages.def"

#define MSG_PROTO_MAJOR 1
#define MSG_HEADER_BYTES 16
#define MSG_HEADER_TYPE_AT 5 /* offset of the type byte */
#define MSG_BODY_MAX    (4u << 20)
#define MSG_NULL_INT    INT64_MIN

struct str {
    const char *text; /* not NUL-terminated; NULL for an absent optional field */
    uint32_t len;
};
struct str str_of(const char *text); /* of a C string that outlives it */

#define MSG_C_U(key, field, min, max)    uint64_t field;
#define MSG_C_I(key, field, min, max)    int64_t field;
#define MSG_C_M(key, field)              int64_t field;
#define MSG_C_F(key, field)              double field;
#define MSG_C_S(key, field, max)         struct str field;
#define MSG_C_O(key, field, max)         struct str field;
#define MSG_C_L(key, field, record, max) struct rec_##record *field; uint32_t n_##field;
#define MSG_C_D(key, field, max)         double *field; uint32_t n_##field;
#define MSG_C(FIELDS) FIELDS(MSG_C_U, MSG_C_I, MSG_C_M, MSG_C_F, MSG_C_S, MSG_C_O, MSG_C_L, MSG_C_D)

#define MSG_RECORD_STRUCT(name, FIELDS) struct rec_##name { MSG_C(FIELDS) };
RECORDS(MSG_RECORD_STRUCT)
#define MSG_MESSAGE_STRUCT(number, NAME, name, direction, FIELDS) struct msg_##name { MSG_C(FIELDS) };
MESSAGES(MSG_MESSAGE_STRUCT)

enum msg_type {
#define MSG_TYPE(number, NAME, name, direction, FIELDS) MSG_##NAME##_TYPE = number,
    MESSAGES(MSG_TYPE)
};

/* Name of a type ("HELLO"), NULL for a number that is no message. Direction: 'W', 'w', 'C', 'c', 0. */
const char *msg_name(int type);
int msg_direction(int type);

/* Sets every measurement and optional field to absent, everything else to 0. Do this before filling in a struct. */
void msg_init(int type, void *msg);
void rec_result_init(struct rec_result *result);

/* Encoded message: header frame and body frame. The buffer is reused by the next msg_encode; free at the end. */
struct msg_out {
    unsigned char header[MSG_HEADER_BYTES];
    char *body;
    size_t body_len, body_cap;
};
/* Checks every field against its limits first (KVF_EINVAL names message and field). */
KVF_MUSTCHECK int msg_encode(int type, const void *msg, uint32_t sequence, struct msg_out *out, struct kvf_err *err);
void msg_out_free(struct msg_out *out);

/* Decoded message. `body` is the struct msg_<name>; text points into the body frame, lists into an arena of this struct:
 * both must live as long as it is used. */
struct msg_in {
    int type;
    uint32_t sequence;
    void *body;
    void *arena; /* internal */
};
/* Refuses (KVF_ECORRUPT, one line: message, field, expected, got): wrong frame sizes, magic, protocol major, checksum,
 * unknown type, MessagePack that a pre-scan does not like (counts beyond the bytes left, depth > 8, more than 262,144
 * nodes, ext), trailing bytes, duplicate keys, missing or out-of-range fields, text that is not UTF-8, NaN, infinity.
 * Never allocates more than a small multiple of the frame. */
KVF_MUSTCHECK int msg_decode(const void *header, size_t header_len, const void *body, size_t body_len,
                             struct msg_in *in, struct kvf_err *err);
void msg_in_free(struct msg_in *in);

/* For table-driven tests and documentation: the fields of a message or record. */
struct msg_field {
    int key;
    char kind; /* U I M F S O L D */
    const char *name;
    uint64_t max; /* value, bytes or items */
    const char *record; /* of L */
    int64_t min;        /* of U, I, M */
};
const struct msg_field *msg_fields(int type, int *count);
const struct msg_field *rec_fields(const char *record, int *count);

#endif
