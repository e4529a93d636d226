/* SPDX-License-Identifier: BSD-2-Clause */
// Nothing: the target is there for its precompiled header.
