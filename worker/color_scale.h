/* color_scale.h: one colour scale for maps, from dark violet over blue and green to light yellow. Lightness rises
 * evenly, so that it reads the same in grey and to people who see few colours. Pure. */
#ifndef KVF_COLOR_SCALE_H
#define KVF_COLOR_SCALE_H

/* share: 0 dark ... 1 light, cut to that; sRGB, 0...255. */
void color_scale(double share, unsigned char rgb[3]);
/* The nearest of the 6 x 6 x 6 colours of a terminal of 256: its number, 16...231. */
int color_256(const unsigned char rgb[3]);

#endif
