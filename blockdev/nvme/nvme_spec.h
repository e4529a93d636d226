/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Defines the NVMe wire format: structures that a driver and a controller
 * exchange.
 *
 * Names and sections follow the NVM Express Base Specification 2.0 (BASE) and
 * the NVM Command Set Specification 1.0 (NVM). Identify data comes from
 * libnvme; this header has the parts that libnvme lacks (queue entries, PRPs)
 * or that GPU code must be able to include. It compiles as C11 and CUDA.
 *
 * All data on the wire is little-endian, as is every supported machine.
 */
#ifndef BLOCKDEV_NVME_NVME_SPEC_H
#define BLOCKDEV_NVME_NVME_SPEC_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the NVMe structs are used in place and need a little-endian host"
#endif

#define NVME_PAGE_SIZE    4096u /* CC.MPS = 0: the only memory page size used */
#define NVME_PRP_PER_PAGE (NVME_PAGE_SIZE / 8u)

/*
 * Registers (BASE 3.1.3) are those of libnvme, NVME_REG_*, with the fields of CAP
 * and the shifts of CC. Here are masks of fields, and what libnvme lacks.
 */
#define NVME_REG_DOORBELLS 0x1000u /* SQ y: +(2y)<<(2+DSTRD); CQ y: +(2y+1)<<(2+DSTRD) */

#define NVME_CAP_CSS_SEVERAL 0x40u /* bit of CAP.CSS: command sets other than NVM */

#define NVME_CC_ENABLE      (1u << 0)
#define NVME_CC_SHN_BITS    (3u << 14)
#define NVME_CC_SHN_ORDERLY (1u << 14)

#define NVME_CSTS_READY         (1u << 0)
#define NVME_CSTS_FATAL         (1u << 1)
#define NVME_CSTS_SHST_BITS     (3u << 2)
#define NVME_CSTS_SHST_COMPLETE (2u << 2)

/*
 * Lays out a submission queue entry (BASE 3.3.3.1, figure 88). Dwords 10 to 15
 * belong to the command.
 */
struct nvme_sqe {
    uint8_t opcode;
    uint8_t flags; /* bits 7:6 PSDT, see nvme_psdt */
    uint16_t cid;
    uint32_t nsid;
    uint32_t cdw2;
    uint32_t cdw3;
    uint64_t mptr;
    uint64_t prp1; /* may hold the first half of an SGL descriptor */
    uint64_t prp2;
    uint32_t cdw10;
    uint32_t cdw11;
    uint32_t cdw12;
    uint32_t cdw13;
    uint32_t cdw14;
    uint32_t cdw15;
};
static_assert(sizeof(struct nvme_sqe) == 64, "SQE is 64 bytes");
static_assert(offsetof(struct nvme_sqe, prp1) == 24, "DPTR at byte 24");
static_assert(offsetof(struct nvme_sqe, cdw10) == 40, "CDW10 at byte 40");

/*
 * Maximum usable entries of a queue. The maximum is one less than the format
 * allows, so that the number of every entry is a valid CID. No command has CID
 * FFFFh, under which errors without a command are logged.
 */
#define NVME_MAX_DEPTH 0xffffu

enum nvme_psdt {
    NVME_PSDT_PRP = 0x00,
    NVME_PSDT_SGL = 0x40, /* SGL for data; MPTR is a contiguous buffer */
};

/* Lays out an SGL descriptor (BASE 4.1.2). */
struct nvme_sgl_desc {
    uint64_t addr;
    uint32_t length;
    uint8_t reserved[3];
    uint8_t type; /* 7:4 descriptor type, 3:0 sub type */
};
static_assert(sizeof(struct nvme_sgl_desc) == 16, "SGL descriptor is 16 bytes");
#define NVME_SGL_DATA_BLOCK   0x00
#define NVME_SGL_SEGMENT      0x20
#define NVME_SGL_LAST_SEGMENT 0x30

/* Lays out a completion queue entry (BASE 3.3.3.2, figure 90). */
struct nvme_cqe {
    uint32_t result;
    uint32_t reserved;
    uint16_t sq_head;
    uint16_t sq_id;
    uint16_t cid;
    uint16_t status; /* bit 0 phase, 8:1 SC, 11:9 SCT, 13:12 CRD, 14 M, 15 DNR */
};
static_assert(sizeof(struct nvme_cqe) == 16, "CQE is 16 bytes");
static_assert(offsetof(struct nvme_cqe, status) == 14, "status at byte 14");

#define NVME_CQE_PHASE(status) ((status)&1u)

/*
 * "NVMe status" always means the CQE's status word shifted right by one: SC in
 * 7:0, SCT in 10:8, CRD in 12:11, M in 13, DNR in 14. Zero is success.
 */
#define NVME_STATUS(cqe_status) ((uint16_t)((cqe_status) >> 1))
#define NVME_STATUS_DNR         (1u << 14)

enum nvme_admin_command {
    NVME_ADMIN_DELETE_SQ = 0x00,
    NVME_ADMIN_CREATE_SQ = 0x01,
    NVME_ADMIN_GET_LOG_PAGE = 0x02,
    NVME_ADMIN_DELETE_CQ = 0x04,
    NVME_ADMIN_CREATE_CQ = 0x05,
    NVME_ADMIN_IDENTIFY = 0x06,
    NVME_ADMIN_ABORT = 0x08,
    NVME_ADMIN_SET_FEATURES = 0x09,
    NVME_ADMIN_GET_FEATURES = 0x0a,
    NVME_ADMIN_ASYNC_EVENT = 0x0c,
};

enum nvme_io_command {
    NVME_IO_FLUSH = 0x00,
    NVME_IO_WRITE = 0x01,
    NVME_IO_READ = 0x02,
    NVME_IO_WRITE_ZEROES = 0x08,
    NVME_IO_DSM = 0x09,
    NVME_IO_RESV_REGISTER = 0x0d,
    NVME_IO_RESV_REPORT = 0x0e,
    NVME_IO_RESV_ACQUIRE = 0x11,
    NVME_IO_RESV_RELEASE = 0x15,
};

/*
 * CDW12 of READ and WRITE (NVM 3.2.4, 3.2.6): the number of LBAs in 15:0 is
 * 0-based.
 */
#define NVME_RW_FUA         (1u << 30)
#define NVME_RW_MAX_LBAS    65536u
#define NVME_WZ_DEAC        (1u << 25)
#define NVME_DSM_DEALLOCATE (1u << 2) /* CDW11 */

#define NVME_FEAT_NUM_QUEUES           0x07u
#define NVME_FEAT_VOLATILE_WRITE_CACHE 0x06u
#define NVME_FEAT_ASYNC_EVENTS         0x0bu
#define NVME_FEAT_HOST_ID              0x81u
#define NVME_HOST_ID_LONG              1u        /* CDW11.EXHID: 16 bytes */
#define NVME_EVENT_NS_CHANGED          (1u << 8) /* of OAES and of the feature's CDW11 */

/*
 * Dword 0 of a completed Asynchronous Event Request (BASE 5.2): the type in 2:0,
 * the information in 15:8, the log page that ends the event in 23:16.
 */
#define NVME_AER_TYPE_NOTICE 2u
#define NVME_AER_TYPE_IO     6u /* specific to an I/O command set */
#define NVME_AER_NS_CHANGED  (0u << 8)
#define NVME_AER_RESERVATION (0u << 8)

/* Changed Namespace List (BASE 5.16.1.5), in CDW10 of Get Log Page. */
#define NVME_LOG_CHANGED_NS  0x04u
#define NVME_LOG_RESERVATION 0x80u /* Reservation Notification (BASE 5.16.1.24) */
#define NVME_NSID_BROADCAST  0xffffffffu
#define NVME_LOG_DWORDS(n)   (((n)-1) << 16) /* NUMDL is 0-based */

/* These are the bits of CDW10 in the reservation commands (BASE 7.2 to 7.5). */
#define NVME_RESV_REGISTER_KEY  0u
#define NVME_RESV_UNREGISTER    1u
#define NVME_RESV_REPLACE_KEY   2u
#define NVME_RESV_ACQUIRE       0u
#define NVME_RESV_PREEMPT       1u
#define NVME_RESV_PREEMPT_ABORT 2u
#define NVME_RESV_RELEASE       0u
#define NVME_RESV_CLEAR         1u
#define NVME_RESV_ANY_KEY       (1u << 3) /* IEKEY: the current key is not compared */
#define NVME_RESV_TYPE(type)    ((type) << 8)
#define NVME_RESV_LOSE_POWER    (2u << 30) /* CPTPL: a power loss ends the reservation */
#define NVME_RESV_KEEP          (3u << 30) /* CPTPL: the reservation survives a power loss */
#define NVME_RESV_LONG_IDS      1u         /* CDW11 of a report: EDS */

enum nvme_cns {
    NVME_CNS_NS = 0x00,
    NVME_CNS_CTRL = 0x01,
    NVME_CNS_ACTIVE_NS_LIST = 0x02,
    NVME_CNS_NS_DESCRIPTORS = 0x03,
    NVME_CNS_CTRL_NVM = 0x06, /* I/O command set specific, CSI 0 in CDW11 */
};

/* Names the statuses that this project uses (BASE 3.3.3.2.1): SCT << 8 | SC. */
enum nvme_status_value {
    NVME_OK = 0x000,
    NVME_ERR_INVALID_OPCODE = 0x001,
    NVME_ERR_INVALID_FIELD = 0x002,
    NVME_ERR_DATA_TRANSFER = 0x004,
    NVME_ERR_INTERNAL = 0x006,
    NVME_ERR_ABORT_REQUESTED = 0x007,
    NVME_ERR_SQ_DELETED = 0x008,
    NVME_ERR_INVALID_NS = 0x00b,
    NVME_ERR_SEQUENCE = 0x00c,
    NVME_ERR_INVALID_SGL_SEGMENT = 0x00d,
    NVME_ERR_INVALID_SGL_COUNT = 0x00e,
    NVME_ERR_INVALID_SGL_LENGTH = 0x00f,
    NVME_ERR_INVALID_SGL_TYPE = 0x011,
    NVME_ERR_INVALID_PRP_OFFSET = 0x013,
    NVME_ERR_HOST_ID_FORMAT = 0x018,
    NVME_ERR_INTERRUPTED = 0x021,
    NVME_ERR_TRANSPORT = 0x022,
    NVME_ERR_MEDIA_NOT_READY = 0x024, /* admin commands only */
    NVME_ERR_LBA_RANGE = 0x080,
    NVME_ERR_CAPACITY = 0x081,
    NVME_ERR_NS_NOT_READY = 0x082,
    NVME_ERR_RESERVATION = 0x083, /* another host has reserved the namespace */
    NVME_ERR_CQ_INVALID = 0x100,
    NVME_ERR_QID_INVALID = 0x101,
    NVME_ERR_QUEUE_SIZE = 0x102,
    NVME_ERR_ABORT_LIMIT = 0x103,
    NVME_ERR_QUEUE_DELETION = 0x10c,
    NVME_ERR_WRITE_FAULT = 0x280,
    NVME_ERR_UNRECOVERED_READ = 0x281,
    NVME_ERR_ANA_LOST = 0x301, /* asymmetric namespace access: for good */
    NVME_ERR_ANA_INACCESSIBLE = 0x302,
    NVME_ERR_ANA_TRANSITION = 0x303,
};

#endif
