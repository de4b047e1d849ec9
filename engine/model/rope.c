/* rope.c: inverse frequencies of rotary embedding.
 *
 * With d = head_dim: f_i = theta^(-2i/d). linear divides by the factor. llama3 divides frequencies whose wavelength is
 * above original/low_freq_factor, keeps those below original/high_freq_factor, and blends between.
 */
#include <math.h>
#include "engine/model/model.h"

static double frequency_llama3(const struct model_config *config, double frequency)
{
    double wavelength = 2 * M_PI / frequency, original = config->rope_original_positions;
    double low = config->rope_low_freq_factor, high = config->rope_high_freq_factor;
    if (wavelength < original / high) return frequency;
    if (wavelength > original / low) return frequency / config->rope_factor;
    double smooth = (original / wavelength - low) / (high - low);
    return (1 - smooth) * frequency / config->rope_factor + smooth * frequency;
}

void model_rope_inv_freq(const struct model_config *config, float *inv_freq)
{
    for (int i = 0; i < config->head_dim / 2; i++) {
        double frequency = pow(config->rope_theta, -2.0 * i / config->head_dim);
        if (config->rope_type == ROPE_LINEAR)
            frequency /= config->rope_factor;
        else if (config->rope_type == ROPE_LLAMA3)
            frequency = frequency_llama3(config, frequency);
        inv_freq[i] = (float)frequency;
    }
}
