/* Wave profiles: the text written and read back, and every way the text can be wrong. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/profile.h"
#include "tests/unit/random.h"

#define HASH_A "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define HASH_B "f123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static struct wave_profile profile_make(int layers, int kv_heads)
{
    struct wave_profile profile;
    memset(&profile, 0, sizeof profile);
    strcpy(profile.model_hash, HASH_A);
    profile.layers = layers;
    profile.kv_heads = kv_heads;
    profile.window_tokens = 8;
    profile.rho = 0.93;
    profile.probes = 8;
    profile.samples = 40;
    profile.has_demand_pooled = next_int(0, 1);
    profile.has_layer_share = next_int(0, 1);
    for (int l = 0; l < layers; l++) {
        profile.demand[l] = exp((double)(next_bits() >> 11) * 0x1p-53 * 4.0 - 2.0);
        if (profile.has_demand_pooled) profile.demand_pooled[l] = profile.demand[l] / 3.0;
        if (profile.has_layer_share) profile.layer_share[l] = (double)next_int(0, 1000);
    }
    return profile;
}

START_TEST(profiles_of_another_model_are_refused)
{
    struct kvf_err err = {.text = ""};
    state = 2;
    struct wave_profile profile = profile_make(8, 3);
    ck_assert_int_eq(profile_check(&profile, HASH_A, 8, 3, &err), KVF_OK);
    ck_assert_int_eq(profile_check(&profile, HASH_B, 8, 3, &err), KVF_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, HASH_A));
    ck_assert_ptr_nonnull(strstr(err.text, HASH_B));
    ck_assert_int_eq(profile_check(&profile, HASH_A, 8, 4, &err), KVF_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "4"));
}
END_TEST

START_TEST(demand_sums_are_scale_free)
{
    struct demand_sum sum = {.samples = 0};
    const double steps[3][3] = {{10, 20, 30}, {1000, 2000, 3000}, {0, 0, 0}};
    double demand[3];
    demand_finish(&sum, 3, demand);
    ck_assert(demand[0] == 1.0 && demand[2] == 1.0);
    for (int i = 0; i < 3; i++) demand_add(&sum, steps[i], 3);
    demand_finish(&sum, 3, demand);
    ck_assert_int_eq(sum.samples, 3);
    ck_assert_double_eq_tol(demand[0], (0.5 + 0.5 + 1.0) / 3.0, 1e-12);
    ck_assert_double_eq_tol(demand[1], 1.0, 1e-12);
    ck_assert_double_eq_tol(demand[2], (1.5 + 1.5 + 1.0) / 3.0, 1e-12);
    double row[4] = {0.1, 0.6, 0.05, 0.2}, scratch[4];
    ck_assert_int_eq(demand_count(row, 4, 0.6, scratch), 1);
    ck_assert_int_eq(demand_count(row, 4, 0.79, scratch), 2);
    ck_assert_int_eq(demand_count(row, 4, 0.93, scratch), 4);
    ck_assert_int_eq(demand_count(row, 4, 0.99, scratch), 4); /* never reached */
    ck_assert_int_eq(demand_count(row, 0, 0.5, scratch), 0);
}
END_TEST

/* ---- text ---- */

static int text_parse(const char *text, struct wave_profile *out, struct kvf_err *err)
{
    /* A copy without a terminator, so that a read past `len` is found. */
    const size_t len = strlen(text);
    char *copy = malloc(len + 1);
    memcpy(copy, text, len);
    char *exact = realloc(copy, len > 0 ? len : 1);
    const int rc = profile_parse(exact, len, out, err);
    free(exact);
    return rc;
}

START_TEST(text_reads_back_the_same)
{
    static char text[3 * PROFILE_MAX_LAYERS * 32 + 1024];
    struct kvf_err err = {.text = ""};
    state = 3;
    for (int round = 0; round < 300; round++) {
        struct wave_profile profile = profile_make(round == 0 ? PROFILE_MAX_LAYERS : next_int(1, 64), next_int(1, 64)),
                            back;
        ck_assert_msg(profile_format(&profile, text, sizeof text, &err) == KVF_OK, "%s", err.text);
        ck_assert_msg(text_parse(text, &back, &err) == KVF_OK, "%s", err.text);
        ck_assert_mem_eq(&profile, &back, sizeof profile);
        const size_t len = strlen(text);
        ck_assert_int_eq(profile_format(&profile, text, len + 1, &err), KVF_OK);
        ck_assert_int_eq(profile_format(&profile, text, len, &err), KVF_ENOMEM);
        ck_assert_int_eq(profile_format(&profile, text, (size_t)next_int(1, (int)len), &err), KVF_ENOMEM);
    }
}
END_TEST

#define HEAD                                                                                                           \
    "{\"kvfleet_wave_profile\":1,\"model_hash\":\"" HASH_A "\",\"layers\":2,\"kv_heads\":3,\"window_tokens\":8,"
#define MIDDLE "\"rho\":0.93,\"probes\":8,\"samples\":40,"

START_TEST(wrong_text_is_refused)
{
    static const char *const wrong[] = {
        "",
        "{}",
        "[]",
        "null",
        HEAD MIDDLE "\"demand\":[1,1]",
        HEAD MIDDLE "\"demand\":[1,1]}}",
        HEAD MIDDLE "\"demand\":[1,1]} x",
        HEAD MIDDLE "\"demand\":[1,1],}",
        HEAD MIDDLE "\"demand\":[1,1,]}",
        HEAD MIDDLE "\"demand\":[1 1]}",
        HEAD MIDDLE "\"demand\":[1]}",
        HEAD MIDDLE "\"demand\":[1,1,1]}",
        HEAD MIDDLE "\"demand\":[]}",
        HEAD MIDDLE "\"demand\":1}",
        HEAD MIDDLE "\"demand\":[1,-1]}",
        HEAD MIDDLE "\"demand\":[1,nan]}",
        HEAD MIDDLE "\"demand\":[1,NaN]}",
        HEAD MIDDLE "\"demand\":[1,1e999]}",
        HEAD MIDDLE "\"demand\":[1,+1]}",
        HEAD MIDDLE "\"demand\":[1,01]}",
        HEAD MIDDLE "\"demand\":[1,.5]}",
        HEAD MIDDLE "\"demand\":[1,1.]}",
        HEAD MIDDLE "\"demand\":[1,\"1\"]}",
        HEAD MIDDLE "\"demand\":[1,1],\"more\":1}",
        HEAD MIDDLE "\"demand_pooled\":[1,1]}",
        HEAD MIDDLE "\"demand\":[1,1],\"demand_pooled\":[1]}",
        HEAD MIDDLE "\"demand\":[1,1],\"layer_share\":[1,1,1]}",
        HEAD MIDDLE "\"demand\":[1,1],\"layer_share\":[1,-1]}",
        HEAD MIDDLE "\"demand\":[1,1],\"layer_share\":[1,1],\"layer_share\":[1,1]}",
        HEAD MIDDLE "\"demand\":[1,1],\"rho\":0.5}",
        HEAD "\"demand\":[1,1]}",
        HEAD "\"rho\":0,\"probes\":8,\"samples\":40,\"demand\":[1,1]}",
        HEAD "\"rho\":1.5,\"probes\":8,\"samples\":40,\"demand\":[1,1]}",
        HEAD "\"rho\":0.93,\"probes\":8.5,\"samples\":40,\"demand\":[1,1]}",
        HEAD "\"rho\":0.93,\"probes\":8,\"samples\":-1,\"demand\":[1,1]}",
        "{\"kvfleet_wave_profile\":2,\"model_hash\":\"" HASH_A
        "\",\"layers\":1,\"kv_heads\":3,\"window_tokens\":8," MIDDLE "\"demand\":[1]}",
        "{\"kvfleet_wave_profile\":1,\"model_hash\":\"abc\",\"layers\":1,\"kv_heads\":3,\"window_tokens\":8," MIDDLE
        "\"demand\":[1]}",
        "{\"kvfleet_wave_profile\":1,\"model_hash\":\"" HASH_A
        "0\",\"layers\":1,\"kv_heads\":3,\"window_tokens\":8," MIDDLE "\"demand\":[1]}",
        "{\"kvfleet_wave_profile\":1,\"model_hash\":\"" HASH_A
        "\",\"layers\":257,\"kv_heads\":3,\"window_tokens\":8," MIDDLE "\"demand\":[1]}",
    };
    struct wave_profile profile;
    struct kvf_err err;
    ck_assert_int_eq(text_parse(HEAD MIDDLE "\"demand\":[1, 0.5e0 ] }\n", &profile, &err), KVF_OK);
    ck_assert(profile.demand[0] == 1.0 && profile.demand[1] == 0.5 && profile.layers == 2);
    ck_assert(!profile.has_demand_pooled && !profile.has_layer_share);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        err.text[0] = '\0';
        ck_assert_msg(text_parse(wrong[i], &profile, &err) < 0, "taken: %s", wrong[i]);
        ck_assert_msg(err.text[0] != '\0' && strchr(err.text, '\n') == NULL, "no line for: %s", wrong[i]);
        ck_assert_int_lt(text_parse(wrong[i], &profile, NULL), 0);
    }
}
END_TEST

/* Cut anywhere, or with any byte replaced: an answer, never a crash; what is still taken is a valid profile. */
START_TEST(damaged_text_never_crashes)
{
    static const char good[] = HEAD MIDDLE "\"demand\":[1.25,0.75]}";
    char text[sizeof good];
    struct wave_profile profile;
    struct kvf_err err;
    for (size_t len = 0; len + 1 < sizeof good; len++) ck_assert_int_lt(profile_parse(good, len, &profile, &err), 0);
    for (size_t at = 0; at + 1 < sizeof good; at++)
        for (int byte = 0; byte < 256; byte++) {
            memcpy(text, good, sizeof good);
            text[at] = (char)byte;
            if (profile_parse(text, sizeof good - 1, &profile, &err) == KVF_OK) {
                ck_assert(profile.layers == 2 && strlen(profile.model_hash) == PROFILE_HASH_HEX);
                ck_assert(profile.demand[0] >= 0.0 && isfinite(profile.demand[0]) && profile.rho > 0.0);
            }
        }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("profile");
    TCase *tc = tcase_create("text");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, profiles_of_another_model_are_refused);
    tcase_add_test(tc, demand_sums_are_scale_free);
    tcase_add_test(tc, text_reads_back_the_same);
    tcase_add_test(tc, wrong_text_is_refused);
    tcase_add_test(tc, damaged_text_never_crashes);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
