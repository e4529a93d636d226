/* The library's kernels, as the driver loads them; what is not needed is not loaded. */
#ifndef CLIENT_DEVICE_DEVICE_IMAGE_H
#define CLIENT_DEVICE_DEVICE_IMAGE_H

/* NULL where the library was built without a CUDA compiler. */
const void *direct_image(void);
/* One kernel each: for lists, of client/direct_service.h, and of client/copy kernel.h. */
const void *readv_image(void);
const void *service_image(void);
const void *copy_kernel_image(void);

#endif
