/* What of a call goes along, by the row of its kind. */
#ifndef TOLLGATE_FETCH_H
#define TOLLGATE_FETCH_H

#include "inodes.h"
#include "pieces.h"
#include "registers.h"

/* The pointers of an array of strings, then the strings. */
static __always_inline void take_texts(u64 address, u32 width)
{
	for (u32 i = 0; i < TEXTS; i++) {
		u64 pointer = 0;

		if (bpf_probe_read_user(&pointer, width == 4 ? 4 : 8, (void *)address))
			break;
		take_bytes(address, width);
		if (!pointer || take_text(pointer, TEXT_LIMIT) < 0)
			break;
		address += width;
	}
}

/* A struct msghdr starts with the pointer to the address and its length. Its own function, for the loop's sake. */
__noinline int take_message(u64 address, u32 width)
{
	u64 pointer = 0;
	u32 len = 0;

	width = width == 4 ? 4 : 8;
	take_bytes(address, width + 4);
	if (bpf_probe_read_user(&pointer, width, (void *)address))
		return -1;
	if (bpf_probe_read_user(&len, sizeof(len), (void *)(address + width)))
		return -1;
	if (pointer && len)
		take_bytes(pointer, len > 128 ? 128 : len);
	return 0;
}

/* The messages of an array of struct mmsghdr. The agent takes the address of what follows these for unknown. */
static __always_inline void take_messages(u64 address, u32 width, u32 count)
{
	for (u32 i = 0; i < MESSAGES && i < count; i++) {
		take_message(address, width);
		address += width == 4 ? 32 : 64;
	}
}

static __always_inline void take(struct scratch *s, const struct fetch *fetch, u32 abi, u32 bank,
				 bool is_opened)
{
	u64 value = s->header.args[fetch->arg < 6 ? fetch->arg : 0];
	u64 other = s->header.args[fetch->other < 6 ? fetch->other : 0];
	u32 width = abi == ABI_NATIVE ? 8 : 4;
	u32 len = fetch->size;
	int first;

	switch (fetch->kind) {
	case FETCH_TEXT:
		take_text(value, 0);
		break;
	case FETCH_PATH:
		first = take_text(value, 0);
		if (first != '/')
			take_directory(fetch->other == NO_ARGUMENT ? AT_FDCWD : (int)other);
		break;
	case FETCH_TEXTS:
		take_texts(value, width);
		break;
	case FETCH_BYTES:
		take_bytes(value + fetch->offset, len);
		break;
	case FETCH_BUFFER:
		if ((u32)other < len)
			len = other;
		take_bytes(value, len);
		break;
	case FETCH_MESSAGE:
		take_messages(value, width, fetch->other == NO_ARGUMENT ? 1 : (u32)other);
		break;
	case FETCH_FD:
		take_file(file_of(s, value), PIECE_FILE, (s64)(int)value);
		break;
	case FETCH_RESULT:
		if ((s64)s->header.result >= 0) {
			u64 file = file_of(s, s->header.result);

			take_file(file, PIECE_FILE, s->header.result);
			if (is_opened)
				take_names(file, bank);
		}
		break;
	}
}

/* Takes along what one entry of a row names. Its own function, so that the verifier looks at it
 * once and not once for each entry. */
__noinline int take_one(u32 key, u32 index, u32 abi)
{
	struct scratch *s = working_memory();
	struct row *row = bpf_map_lookup_elem(&rows, &key);

	if (!s || !row || index >= FETCHES)
		return -1;
	/* Of those whose result is a descriptor, the others are about sockets. */
	take(s, &row->fetch[index], abi, key >= ROWS, !(row->flags & ROW_SOCKET));
	return 0;
}

#endif
