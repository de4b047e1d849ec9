#include "proto/message_table.h"

#include <string.h>

#define FIELD_U(key, field, min, max)    {key, 'U', #field, max, NULL, min},
#define FIELD_I(key, field, min, max)    {key, 'I', #field, max, NULL, min},
#define FIELD_M(key, field)              {key, 'M', #field, INT64_MAX, NULL, INT64_MIN + 1},
#define FIELD_F(key, field)              {key, 'F', #field, 0, NULL, 0},
#define FIELD_S(key, field, max)         {key, 'S', #field, max, NULL, 0},
#define FIELD_O(key, field, max)         {key, 'O', #field, max, NULL, 0},
#define FIELD_L(key, field, record, max) {key, 'L', #field, max, #record, 0},
#define FIELD_D(key, field, max)         {key, 'D', #field, max, NULL, 0},

#define PLACE_U(key, field, min, max)    {offsetof(self, field), 0, NULL},
#define PLACE_I(key, field, min, max)    {offsetof(self, field), 0, NULL},
#define PLACE_M(key, field)              {offsetof(self, field), 0, NULL},
#define PLACE_F(key, field)              {offsetof(self, field), 0, NULL},
#define PLACE_S(key, field, max)         {offsetof(self, field), 0, NULL},
#define PLACE_O(key, field, max)         {offsetof(self, field), 0, NULL},
#define PLACE_L(key, field, record, max) {offsetof(self, field), offsetof(self, n_##field), layout_rec_##record},
#define PLACE_D(key, field, max)         {offsetof(self, field), offsetof(self, n_##field), NULL},

#define REQUIRED_U(key, field, min, max)    +1
#define REQUIRED_I(key, field, min, max)    +1
#define REQUIRED_M(key, field)              +0
#define REQUIRED_F(key, field)              +0
#define REQUIRED_S(key, field, max)         +1
#define REQUIRED_O(key, field, max)         +0
#define REQUIRED_L(key, field, record, max) +1
#define REQUIRED_D(key, field, max)         +1

#define EACH(FIELDS, WHAT) FIELDS(WHAT##_U, WHAT##_I, WHAT##_M, WHAT##_F, WHAT##_S, WHAT##_O, WHAT##_L, WHAT##_D)

/* The tables of one struct. They sit in a function because only there can each have its own meaning of `self`. */
#define LAYOUT(function, c_struct, text, FIELDS)                                                                       \
    static const struct layout *function(void)                                                                         \
    {                                                                                                                  \
        typedef struct c_struct self;                                                                                  \
        static const struct msg_field fields[] = {EACH(FIELDS, FIELD)};                                                \
        static const struct place places[] = {EACH(FIELDS, PLACE)};                                                    \
        static const struct layout layout = {.name = text,                                                             \
                                             .size = sizeof(self),                                                     \
                                             .n_fields = sizeof fields / sizeof fields[0],                             \
                                             .n_required = 0 EACH(FIELDS, REQUIRED),                                   \
                                             .fields = fields,                                                         \
                                             .places = places};                                                        \
        return &layout;                                                                                                \
    }
#define RECORD_LAYOUT(name, FIELDS)                            LAYOUT(layout_rec_##name, rec_##name, #name, FIELDS)
#define MESSAGE_LAYOUT(number, upper, name, direction, FIELDS) LAYOUT(layout_msg_##name, msg_##name, #upper, FIELDS)
RECORDS(RECORD_LAYOUT)
MESSAGES(MESSAGE_LAYOUT)

static const struct {
    const struct layout *(*layout)(void);
    char direction;
} messages[256] = {
#define MESSAGE_ENTRY(number, upper, name, direction, FIELDS) [number] = {layout_msg_##name, #direction[0]},
    MESSAGES(MESSAGE_ENTRY)};

static const struct layout *(*const records[])(void) = {
#define RECORD_ENTRY(name, FIELDS) layout_rec_##name,
    RECORDS(RECORD_ENTRY)};

const struct layout *layout_of_type(int type)
{
    if (type < 0 || type > 255 || messages[type].layout == NULL) return NULL;
    return messages[type].layout();
}

const struct layout *layout_of_record(const char *name)
{
    for (size_t i = 0; i < sizeof records / sizeof records[0]; i++)
        if (strcmp(records[i]()->name, name) == 0) return records[i]();
    return NULL;
}

int layout_find(const struct layout *layout, uint64_t key)
{
    /* Keys are numbered from 1 without gaps until one is retired, so the first guess nearly always hits. */
    if (key >= 1 && key <= (uint64_t)layout->n_fields && (uint64_t)layout->fields[key - 1].key == key)
        return (int)key - 1;
    for (int i = 0; i < layout->n_fields; i++)
        if ((uint64_t)layout->fields[i].key == key) return i;
    return -1;
}

int kind_is_required(char kind)
{
    return kind != 'M' && kind != 'F' && kind != 'O';
}

void layout_init(const struct layout *layout, void *record)
{
    memset(record, 0, layout->size);
    for (int i = 0; i < layout->n_fields; i++) {
        void *member = (char *)record + layout->places[i].offset;
        if (layout->fields[i].kind == 'M') *(int64_t *)member = MSG_NULL_INT;
        if (layout->fields[i].kind == 'F') *(double *)member = NAN;
    }
}

const char *msg_name(int type)
{
    const struct layout *layout = layout_of_type(type);
    return layout == NULL ? NULL : layout->name;
}

int msg_direction(int type)
{
    return type < 0 || type > 255 ? 0 : messages[type].direction;
}

void msg_init(int type, void *msg)
{
    const struct layout *layout = layout_of_type(type);
    if (layout != NULL) layout_init(layout, msg);
}

void rec_result_init(struct rec_result *result)
{
    layout_init(layout_rec_result(), result);
}

const struct msg_field *msg_fields(int type, int *count)
{
    const struct layout *layout = layout_of_type(type);
    *count = layout == NULL ? 0 : layout->n_fields;
    return layout == NULL ? NULL : layout->fields;
}

const struct msg_field *rec_fields(const char *record, int *count)
{
    const struct layout *layout = layout_of_record(record);
    *count = layout == NULL ? 0 : layout->n_fields;
    return layout == NULL ? NULL : layout->fields;
}
