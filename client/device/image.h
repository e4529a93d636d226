/* The library's kernels, as the driver loads them. */
#ifndef CLIENT_DEVICE_IMAGE_H
#define CLIENT_DEVICE_IMAGE_H

/* NULL where the library was built without a CUDA compiler. */
const void *direct_image(void);
/* The copier's (client/copier.h), apart from them. */
const void *copier_image(void);

#endif
