/* Policies as users type them: presets, parameters, canonical names, refusals. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/policy.h"
#include "alloc/scorer.h"

static struct policy parsed(const char *text)
{
    struct policy policy;
    struct kvf_err err = {.text = ""};
    memset(&policy, 0xA5, sizeof policy);
    ck_assert_msg(policy_parse(text, &policy, &err) == KVF_OK, "%s: %s", text, err.text);
    return policy;
}

static void refused(const char *text, const char *first, const char *second)
{
    struct policy policy;
    struct kvf_err err = {.text = ""};
    ck_assert_msg(policy_parse(text, &policy, &err) == KVF_EINVAL, "\"%s\" is taken", text);
    ck_assert_msg(strstr(err.text, first) != NULL && strstr(err.text, second) != NULL, "\"%s\": %s", text, err.text);
    ck_assert_ptr_null(strchr(err.text, '\n'));
    ck_assert_int_eq(policy_parse(text, &policy, NULL), KVF_EINVAL);
}

START_TEST(presets_are_what_the_papers_say)
{
    int count = 0, scorers = 0;
    for (; policy_preset_name(count) != NULL; count++)
        ck_assert_str_eq(parsed(policy_preset_name(count)).name, policy_preset_name(count));
    while (scorer_at(scorers) != NULL) scorers++;
    ck_assert_int_ge(scorers, 13);
    ck_assert_int_eq(count, scorers + 11);
    ck_assert_ptr_null(policy_preset_name(-1));
    for (int i = 0; scorer_at(i) != NULL; i++) {
        ck_assert_int_eq(parsed(scorer_at(i)->name).scorer, i);
        ck_assert_int_eq(scorer_find(scorer_at(i)->name, (int)strlen(scorer_at(i)->name)), i);
    }
    ck_assert_int_eq(parsed("full").scorer, SCORER_NONE);
    ck_assert_str_eq(parsed("none").name, "full");
    static const struct {
        const char *name, *scorer, *parts;
        enum policy_plan plan;
        enum policy_router router;
        enum policy_scores scores;
        int profile, online;
    } wanted[] = {
        {"pyramid-rkv", "rkv", "+pyramid", PLAN_PYRAMID, ROUTER_UNIFORM, SCORES_RAW, 0, 0},
        {"ada-rkv", "rkv", "+ada", PLAN_UNIFORM, ROUTER_ADA, SCORES_RAW, 0, 0},
        {"layer-only", "rkv", "+wave", PLAN_WAVE, ROUTER_UNIFORM, SCORES_RAW, 1, 0},
        {"head-only", "rkv", "+reasonalloc", PLAN_UNIFORM, ROUTER_REASONALLOC, SCORES_RAW, 0, 0},
        {"head-only-relative", "rkv", "+reasonalloc:scores=relative", PLAN_UNIFORM, ROUTER_REASONALLOC, SCORES_RELATIVE,
         0, 0},
        {"reasonalloc", "rkv", "+reasonalloc+wave", PLAN_WAVE, ROUTER_REASONALLOC, SCORES_RAW, 1, 0},
        {"reasonalloc-relative", "rkv", "+wave+reasonalloc:scores=relative", PLAN_WAVE, ROUTER_REASONALLOC,
         SCORES_RELATIVE, 1, 0},
        {"zigzag-rkv", "rkv", "+zigzag", PLAN_ZIGZAG, ROUTER_UNIFORM, SCORES_RAW, 1, 0},
        {"cake", "snapkv", "+cake", PLAN_CAKE, ROUTER_UNIFORM, SCORES_RAW, 0, 1},
        {"dynamic", "rkv", "+dynamic+reasonalloc", PLAN_DYNAMIC, ROUTER_REASONALLOC, SCORES_RAW, 0, 1},
        {"ada-snapkv", "snapkv", "+uniform+ada:reduce=mean-prob", PLAN_UNIFORM, ROUTER_ADA, SCORES_RAW, 0, 0},
    };
    for (int i = 0; i < 11; i++) {
        char text[96];
        snprintf(text, sizeof text, "%s%s", wanted[i].scorer, wanted[i].parts);
        struct policy preset = parsed(wanted[i].name), same = parsed(text);
        ck_assert_msg(memcmp(&preset, &same, sizeof preset) == 0, "%s is %s", text, same.name);
        ck_assert_str_eq(scorer_at(preset.scorer)->name, wanted[i].scorer);
        ck_assert(preset.plan == wanted[i].plan && preset.router == wanted[i].router);
        ck_assert_int_eq(preset.scores, wanted[i].scores);
        ck_assert_int_eq(policy_needs_profile(&preset), wanted[i].profile);
        ck_assert_int_eq(policy_plan_is_online(&preset), wanted[i].online);
    }
    struct policy streaming = parsed("streaming"), snapkv = parsed("snapkv"), policy = parsed("reasonalloc");
    ck_assert_int_eq(streaming.sinks_tokens, 4);
    ck_assert_int_eq(streaming.window_tokens, 8);
    ck_assert(snapkv.window_tokens == 8 && snapkv.kernel == 7 && snapkv.sinks_tokens == 0);
    ck_assert(policy.plan == PLAN_WAVE && policy.router == ROUTER_REASONALLOC);
    ck_assert(policy.window_tokens == 8 && policy.sinks_tokens == 0 && policy.kernel == 7);
    ck_assert(policy.lambda == 0.1 && policy.similarity == 0.5 && policy.gamma == 0.5 && policy.beta == 0.5);
    ck_assert(policy.clip_low == 0.25 && policy.clip_high == 2.0 && policy.mu == 0.25);
    ck_assert_int_eq(policy.scores, SCORES_RAW);
    ck_assert_int_eq(parsed("reasonalloc-relative").scores, SCORES_RELATIVE);
    /* Ada-KV takes the mean of the group's probabilities; R-KV's SnapKV under its router is another policy. */
    ck_assert_int_eq(parsed("ada-snapkv").reduce, REDUCE_MEAN_PROB);
    ck_assert_int_eq(parsed("snapkv+ada").reduce, REDUCE_METHOD);
    policy = parsed("rkv");
    ck_assert(policy.plan == PLAN_UNIFORM && policy.router == ROUTER_UNIFORM);
}
END_TEST

START_TEST(parameters_are_set_and_named)
{
    struct policy policy = parsed("rkv:lambda=0.07,window=16,sinks=4,kernel=5,similarity=-0.5");
    ck_assert(policy.lambda == 0.07 && policy.window_tokens == 16 && policy.sinks_tokens == 4);
    ck_assert(policy.kernel == 5 && policy.similarity == -0.5);
    /* One policy, one name: order, defaults and spelling of a number do not matter, and the name reads back. */
    static const char *const same[][2] = {
        {"rkv:lambda=0.1", "rkv"},
        {"rkv:lambda=1e-1,window=8", "rkv"},
        {"rkv:window=16,lambda=0.20", "rkv:lambda=2e-1,window=16"},
        {"reasonalloc:scores=relative", "reasonalloc-relative"},
        {"reasonalloc-relative:scores=raw,mu=.5", "reasonalloc:mu=0.5"},
        {"reasonalloc:beta=-0", "reasonalloc:beta=0"},
        {"rkv:lambda=0.30000000000000004", "rkv:lambda=0.30000000000000004"},
        {"rkv+wave+reasonalloc:beta=0.5,mu=0.25", "reasonalloc"},
        {"rkv+reasonalloc+wave", "reasonalloc"},
        {"rkv+uniform+uniform", "rkv"},
        {"none+uniform", "full"},
        {"snapkv+uniform+cake", "cake"},
        {"head-only:scores=relative,beta=1", "head-only-relative:beta=1"},
        {"lava+ada+cake:ema=0.5", "lava+cake+ada:ema=0.5"},
        {"vatp:sinks=4", "vatp"},
        {"snapkv+ada:alpha=0.5,reduce=mean-prob", "ada-snapkv:alpha=0.5"},
        {"ada-snapkv:reduce=method", "snapkv+ada"},
        {"ada-snapkv:reduce=max-prob", "snapkv+ada:reduce=max-prob"},
        {"rkv+wave+reasonalloc:reduce=mean-prob", "reasonalloc:reduce=mean-prob"},
        {"rkv:reduce=method,prompt=at-first-interval,protect-prompt=0", "rkv"},
    };
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        struct policy a = parsed(same[i][0]), b = parsed(same[i][1]), again = parsed(a.name);
        ck_assert_msg(memcmp(&a, &b, sizeof a) == 0, "%s is %s, %s is %s", same[i][0], a.name, same[i][1], b.name);
        ck_assert_msg(memcmp(&a, &again, sizeof a) == 0, "%s reads back as %s", a.name, again.name);
    }
    ck_assert_str_eq(parsed("ada-snapkv:reduce=method").name, "snapkv+ada");
    ck_assert_str_eq(parsed("rkv+wave+reasonalloc:reduce=max-prob").name, "reasonalloc:reduce=max-prob");
    ck_assert_str_eq(parsed("rkv:lambda=0.07").name, "rkv:lambda=0.07");
    ck_assert_str_eq(parsed("snapkv+ada+pyramid:alpha=0.5,pyramid-beta=10,pool=avg").name,
                     "snapkv+pyramid+ada:pool=avg,pyramid-beta=10,alpha=0.5");
    policy = parsed("critical-kv+wave+ada:reduce=max-prob,pool=avg,floor=protect,demand=pooled,scores=relative,"
                    "prompt=at-prefill,stop-after-think=1");
    ck_assert(policy.reduce == REDUCE_MAX_PROB && policy.pool == POOL_AVG && policy.floor == FLOOR_PROTECT);
    ck_assert(policy.demand == DEMAND_POOLED && policy.scores == SCORES_RELATIVE);
    ck_assert(policy.prompt == PROMPT_AT_PREFILL && policy.protect_prompt == 0 && policy.stop_after_think == 1);
    ck_assert_int_eq(parsed("rkv:protect-prompt=1").protect_prompt, 1);
    ck_assert_int_eq(parsed("rkv:retain=first").retain, RETAIN_FIRST);
    ck_assert_int_eq(parsed("expected-attention").sinks_tokens, 4);
    ck_assert_str_eq(parsed("reasonalloc:clip-high=3,gamma=1").name, "reasonalloc:gamma=1,clip-high=3");
}
END_TEST

START_TEST(bad_text_is_refused_in_one_line)
{
    refused("", "policy", "full");
    refused("magic", "magic", "reasonalloc");
    refused("RKV", "RKV", "rkv");
    refused("rkv:", "rkv", "key=value");
    refused("rkv:lambda", "lambda", "key=value");
    refused("rkv:lambda=0.1,", "rkv", "key=value");
    refused("rkv:lamda=0.1", "lamda", "lambda");
    refused("rkv:gamma=1", "gamma", "lambda");
    refused("full:window=8", "window", "full");
    refused("snapkv:lambda=1", "lambda", "kernel");
    refused("streaming:kernel=7", "kernel", "sinks");
    refused("rkv:lambda=0.1,lambda=0.2", "lambda", "twice");
    refused("full+wave", "full", "no layer plan");
    refused("full+ada", "full", "no layer plan");
    refused("tova+ada", "tova", "same entries");
    refused("tova+reasonalloc+wave", "tova", "same entries");
    refused("streaming+reasonalloc", "streaming", "not on one scale");
    refused("knorm+cake+ada", "knorm", "not on one scale");
    refused("rkv+wave+pyramid", "pyramid", "layer plan");
    refused("rkv+ada+reasonalloc", "reasonalloc", "head router");
    refused("rkv+wave+ada+uniform", "uniform", "one too many");
    refused("rkv+magic", "magic", "pyramid");
    refused("rkv+", "rkv", "reasonalloc");
    refused("+rkv", "+rkv", "SCORER");
    refused("wave", "wave", "SCORER");
    refused("rkv+snapkv", "snapkv", "layer plan");
    refused("ada-rkv+wave", "ada-rkv", "preset");
    refused("reasonalloc+wave", "reasonalloc", "preset");
    refused("streaming:scores=relative", "scores", "sinks");
    refused("rkv+wave:rho=0.9", "rho", "gamma");
    refused("rkv:reduce=sum", "reduce", "max-logit");
    refused("rkv:protect-prompt=2", "protect-prompt", "1");
    refused("cake:ema=1", "ema", "0.99");
    refused("rkv:lambda=2", "lambda", "2");
    refused("rkv:lambda=-0.1", "lambda", "-0.1");
    refused("rkv:lambda=nan", "lambda", "nan");
    refused("rkv:lambda=inf", "lambda", "inf");
    refused("rkv:lambda=0x1p-1", "lambda", "0x1p-1");
    refused("rkv:lambda= 0.1", "lambda", "0.1");
    refused("rkv:lambda=", "lambda", "0");
    refused("rkv:lambda=0.1x", "lambda", "0.1x");
    refused("rkv:kernel=4", "kernel", "odd");
    refused("rkv:window=0", "window", "0");
    refused("rkv:window=1.5", "window", "1.5");
    refused("rkv:window=99999999999999999999", "window", "99999999999999999999");
    refused("rkv:sinks=-1", "sinks", "-1");
    refused("reasonalloc:scores=other", "scores", "relative");
    refused("reasonalloc:clip-low=1.5", "clip-low", "1.5");
    refused("reasonalloc:clip-high=0.5", "clip-high", "0.5");
    char text[5000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    refused(text, "policy", "full");
    memcpy(text, "rkv:", 4);
    refused(text, "rkv", "");
}
END_TEST

/* A parameter that was written out and that another value switches off is refused with that value, whatever the order
 * and the value of its own; a default that has no effect is fine, and so is what still has one. */
START_TEST(parameters_without_effect_are_refused)
{
    static const struct {
        const char *part, *when, *keys[6];
    } rows[] = {
        {"rkv", "lambda=1", {"similarity=0.9", "similarity=0.5", "retain=first", "retain=last"}},
        {"ada-rkv", "retain=first", {"similarity=0.9", "similarity=0.5"}},
        {"reasonalloc", "lambda=0", {"kernel=5", "kernel=7", "reduce=mean-prob", "reduce=method", "pool=avg"}},
        {"snapkv", "kernel=1", {"pool=avg", "pool=max"}},
        {"zigzag-rkv", "zigzag-min=1", {"demand=pooled"}},
        {"layer-only", "gamma=0", {"demand=pooled", "clip-low=0", "clip-high=3"}},
        {"layer-only", "clip-low=1", {"demand=pooled", "gamma=1", "clip-high=3"}},
        {"dynamic", "gamma=0", {"demand=pooled", "clip-low=0", "clip-high=3", "rho=0.5", "ema=0.5"}},
        {"dynamic", "clip-high=1", {"demand=pooled", "gamma=1", "clip-low=0", "rho=0.5", "ema=0.5"}},
        {"ada-rkv", "alpha=1", {"scores=relative", "scores=raw"}},
        {"reasonalloc", "beta=0", {"mu=0.5", "scores=relative", "utility=mass", "smooth=0.5"}},
        {"head-only", "mu=1", {"beta=1", "scores=relative", "utility=mass", "smooth=0.5"}},
        {"rkv+pyramid+reasonalloc", "mu=1", {"beta=1"}},
        {"random", "protect-prompt=1", {"prompt=at-prefill", "prompt=at-first-interval"}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (int k = 0; k < 6 && rows[i].keys[k] != NULL; k++) {
            char text[128], key[64];
            snprintf(key, sizeof key, "%.*s has no effect", (int)strcspn(rows[i].keys[k], "="), rows[i].keys[k]);
            snprintf(text, sizeof text, "%s:%s,%s", rows[i].part, rows[i].when, rows[i].keys[k]);
            refused(text, key, rows[i].when);
            snprintf(text, sizeof text, "%s:%s,%s", rows[i].part, rows[i].keys[k], rows[i].when);
            refused(text, key, rows[i].when);
            snprintf(text, sizeof text, "%s:%s", rows[i].part, rows[i].when);
            parsed(text);
        }
    static const char *const fine[] = {
        "rkv:lambda=1,kernel=5,reduce=mean-prob,pool=avg",
        "rkv:lambda=0,similarity=0.9",
        "rkv:lambda=0,retain=first",
        "rkv:retain=last,similarity=0.9",
        "cake-score:kernel=1",
        "ada-rkv:alpha=0,floor=protect",
        "ada-rkv:alpha=1,floor=protect,scores=relative",
        "reasonalloc:mu=1,beta=1", /* a layer's budget need not divide by its heads */
        "reasonalloc:clip-low=0,clip-high=3,gamma=2",
        "reasonalloc-relative:beta=0",
        "rkv:prompt=at-prefill,protect-prompt=0",
    };
    for (size_t i = 0; i < sizeof fine / sizeof fine[0]; i++) parsed(fine[i]);
}
END_TEST

/* Nothing that was typed reaches a terminal as a command to it, in any error: kvf_fail writes them all. */
START_TEST(what_is_quoted_is_escaped)
{
    static const struct {
        const char *raw, *escaped;
    } rows[] = {
        {"a\x1b[31mb\x07", "a\\x1b[31mb\\x07"},
        {"\t\r\n\x7f", "\\x09\\x0d\\n\\x7f"},
        {"\xc2\x9b"
         "31m",
         "\\xc2\\x9b31m"}, /* U+009B is ESC [ in one character */
        {"gr\xc3\xb6\xc3\x9f"
         "e \xe2\x82\xac \xf0\x9f\x98\x80",
         "gr\xc3\xb6\xc3\x9f"
         "e \xe2\x82\xac \xf0\x9f\x98\x80"},
        {"\x9b\xff\xc3(\xed\xa0\x80", "\\x9b\\xff\\xc3(\\xed\\xa0\\x80"},
        {"\\x1b", "\\x1b"},
        {"\xe2\x82", "\\xe2\\x82"},
    };
    struct kvf_err err, again;
    char text[2 * KVF_ERR_MAX];
    refused("rkv\x1b[31m", "policy 'rkv\\x1b[31m' is unknown", "");
    refused("rkv:\x1b=1", "'\\x1b'", "");
    refused("rkv:lambda=\x1b]0;x\x07", "lambda is '\\x1b]0;x\\x07'", "");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ck_assert_int_eq(kvf_fail(&err, KVF_EIO, "'%s'", rows[i].raw), KVF_EIO);
        snprintf(text, sizeof text, "'%s'", rows[i].escaped);
        ck_assert_str_eq(err.text, text);
        kvf_fail(&again, KVF_EIO, "%s", err.text); /* an error that quotes another changes nothing */
        ck_assert_str_eq(again.text, err.text);
    }
    /* What has no room is left out whole. */
    memset(text, '\x1b', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    kvf_fail(&err, KVF_EIO, "%s", text);
    ck_assert_uint_eq(strlen(err.text), (KVF_ERR_MAX - 1) / 4 * 4);
    ck_assert_str_eq(err.text + strlen(err.text) - 4, "\\x1b");
}
END_TEST

/* The tables behind a listing: every parameter is used by somebody, and its default is what a policy has. */
START_TEST(listings_say_what_parsing_does)
{
    struct policy_part part;
    struct policy_parameter parameter;
    int presets = 0, parameters = 0;
    for (; policy_part_at(PART_PRESET, presets, &part); presets++) {
        ck_assert_str_eq(part.name, policy_preset_name(presets));
        const struct policy preset = parsed(part.name), same = parsed(part.meaning);
        ck_assert_msg(memcmp(&preset, &same, sizeof preset) == 0, "%s is not %s", part.name, part.meaning);
        ck_assert_str_ne(part.source, "");
    }
    ck_assert_ptr_null(policy_preset_name(presets));
    for (; policy_parameter_at(parameters, &parameter); parameters++) {
        int used = 0;
        ck_assert_msg(parameter.used_by[0] != '\0' && parameter.meaning[0] != '\0', "%s", parameter.name);
        for (int i = 0; policy_preset_name(i) != NULL; i++) {
            char text[320], value[32];
            const struct policy policy = parsed(policy_preset_name(i));
            if (!policy_parameter_of(&policy, parameters, value, sizeof value)) continue;
            used++;
            snprintf(text, sizeof text, "%s:%s=%s", policy.name, parameter.name, value);
            ck_assert_str_eq(parsed(text).name, policy.name);
            if (strcmp(parameter.name, "sinks") != 0 && strcmp(parameter.name, "scores") != 0 &&
                strcmp(parameter.name, "reduce") != 0)
                ck_assert_str_eq(value, parameter.standard);
        }
        ck_assert_msg(used > 0, "no preset reads %s", parameter.name);
    }
    ck_assert_int_eq(parameters, 32);
    ck_assert(policy_part_at(PART_PLAN, 1, &part) && strcmp(part.name, "pyramid") == 0);
    ck_assert(policy_part_at(PART_ROUTER, 2, &part) && strcmp(part.name, "reasonalloc") == 0);
    ck_assert(policy_part_at(PART_SCORER, 0, &part) && strcmp(part.name, "none") == 0);
    /* a variant is not passed off as the paper's own */
    ck_assert(policy_part_at(PART_SCORER, 2, &part) && strcmp(part.name, "snapkv") == 0);
    ck_assert_ptr_nonnull(strstr(part.source, "R-KV"));
    ck_assert(!policy_part_at(PART_PLAN, 7, &part) && !policy_part_at(PART_ROUTER, -1, &part));
    ck_assert(!policy_parameter_at(-1, &parameter) && !policy_parameter_at(parameters, &parameter));
}
END_TEST

START_TEST(budgets_leave_room_for_one_choice)
{
    struct policy policy = parsed("streaming:window=10,sinks=3");
    struct kvf_err err = {.text = ""};
    ck_assert_int_eq(policy_check_budget(&policy, 14, 1, &err), KVF_OK);
    ck_assert_int_eq(policy_check_budget(&policy, 13, 1, &err), KVF_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "13"));
    ck_assert_ptr_nonnull(strstr(err.text, "14"));
    ck_assert_int_eq(policy_check_budget(&policy, 14, 0, &err), KVF_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "interval"));
    ck_assert_int_eq(policy_check_budget(&policy, -5, 1, NULL), KVF_EINVAL);
    policy = parsed("full");
    ck_assert_int_eq(policy_check_budget(&policy, 0, 1, &err), KVF_OK);
    ck_assert_int_eq(policy_check_budget(&policy, -3, 1, &err), KVF_OK);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("policy");
    TCase *tc = tcase_create("text");
    tcase_add_test(tc, presets_are_what_the_papers_say);
    tcase_add_test(tc, parameters_are_set_and_named);
    tcase_add_test(tc, bad_text_is_refused_in_one_line);
    tcase_add_test(tc, parameters_without_effect_are_refused);
    tcase_add_test(tc, what_is_quoted_is_escaped);
    tcase_add_test(tc, listings_say_what_parsing_does);
    tcase_add_test(tc, budgets_leave_room_for_one_choice);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
