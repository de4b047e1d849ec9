/* color_scale.c: see color_scale.h. The scale is a path through OKLCH; the conversion is Ottosson, "A perceptual color
 * space for image processing" (2020). */
#include "worker/color_scale.h"

#include <math.h>
#include <stdlib.h>

static double srgb_of(double linear)
{
    if (linear <= 0.0031308) return linear <= 0 ? 0 : 12.92 * linear;
    return 1.055 * pow(linear < 1 ? linear : 1, 1 / 2.4) - 0.055;
}

void color_scale(double share, unsigned char rgb[3])
{
    double at = !(share > 0) ? 0 : share > 1 ? 1 : share;
    /* less colour where sRGB has none of it: between blue and green */
    double lightness = 0.26 + 0.66 * at, chroma = 0.13 + 0.04 * at - 0.19 * at * (1 - at),
           hue = (300 - 195 * at) * acos(-1) / 180;
    double a = chroma * cos(hue), b = chroma * sin(hue);
    double l = pow(lightness + 0.3963377774 * a + 0.2158037573 * b, 3);
    double m = pow(lightness - 0.1055613458 * a - 0.0638541728 * b, 3);
    double s = pow(lightness - 0.0894841775 * a - 1.2914855480 * b, 3);
    const double linear[3] = {+4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
                              -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
                              -0.0041960863 * l - 0.7034186147 * m + 1.7076147010 * s};
    for (int i = 0; i < 3; i++) rgb[i] = (unsigned char)(srgb_of(linear[i]) * 255 + 0.5);
}

int color_256(const unsigned char rgb[3])
{
    static const int steps[6] = {0, 95, 135, 175, 215, 255};
    int out = 0;
    for (int i = 0; i < 3; i++) {
        int best = 0;
        for (int k = 1; k < 6; k++)
            if (abs(steps[k] - rgb[i]) < abs(steps[best] - rgb[i])) best = k;
        out = out * 6 + best;
    }
    return 16 + out;
}
