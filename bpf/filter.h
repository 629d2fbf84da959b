/* The interest plan: what of a call rules ask for, as slots. */
#ifndef TOLLGATE_FILTER_H
#define TOLLGATE_FILTER_H

#include "caller.h"
#include "registers.h"
#include "inodes.h"

/* 1 if a number is not 0, without a branch: each is another way for the verifier to follow through all tests that
 * come after it. The compiler must not know what is computed, or it makes a branch of it. */
static __always_inline u64 not_zero(u64 number)
{
	u64 negative = -number;

	asm volatile("" : "+r"(negative));
	return (number | negative) >> 63;
}

/* 1 if the first number is the smaller one: the borrow of the subtraction. */
static __always_inline u64 is_below(u64 number, u64 other)
{
	u64 difference = number - other;

	asm volatile("" : "+r"(difference));
	return ((~number & other) | ((~number | other) & difference)) >> 63;
}

/* 1 if a test fails, else 0. */
static __always_inline u64 fails(const struct test *test, const u64 *args)
{
	/* No test names an argument behind the sixth. */
	u64 has = args[test->arg & 7] & test->mask, wants = test->value, failed;

	if (test->op == OP_AT_LEAST)
		failed = is_below(has, wants);
	else if (test->op == OP_AT_MOST)
		failed = is_below(wants, has);
	else
		failed = not_zero(has ^ wants);
	return failed ^ (test->is_negated & 1);
}

/* Slots of the plan that the result leaves. */
static __always_inline u64 by_result(const struct row *row, s64 result)
{
	if (result < 0 && result >= -4095) {
		u64 error = seen_by_caller(result);

		error = -error;
		if (error < 128 && row->errors[error >> 6 & 1] >> (error & 63) & 1)
			return row->failed | row->refused;
		return row->failed;
	}
	if (result >= 0 && result < 64 && row->results >> result & 1)
		return row->succeeded | row->limited;
	return row->succeeded;
}

/* Slots of the plan that the arguments leave, which are in the working memory. Its own function, so that the verifier
 * looks at it once and not once for each way to a call's arguments. */
__noinline u64 by_arguments(u32 key)
{
	struct scratch *s = working_memory();
	struct row *row = bpf_map_lookup_elem(&rows, &key);
	u64 slots = 0, failed = 0;

	if (!s || !row || row->tests == 0)
		return ALL_SLOTS;
	for (u32 i = 0; i < TESTS; i++) {
		const struct test *test = &row->test[i];
		u64 ends;

		if (i >= row->tests)
			break;
		failed |= fails(test, s->header.args);
		ends = test->ends_group;
		asm volatile("" : "+r"(ends), "+r"(failed));
		/* All ones where a group ends, and where none of it has failed. */
		ends = -(ends & 1);
		slots |= test->slots & ends & (failed - 1);
		failed &= ~ends;
	}
	return slots;
}

/* The edge that a byte leads along. */
static __always_inline u32 next_edge(const struct automaton *automaton, u32 edge, u8 byte)
{
	u64 at = (u64)edge + automaton->class_of[byte];

	/* Without what else the edge says, and within bounds. */
	asm volatile("%0 &= %1" : "+r"(at) : "i"((STATES * CLASSES - 1) * EDGE_SIZE));
	return *(const u32 *)((const void *)automaton->edge + at);
}

/* Slots whose patterns are completed where an edge leads. */
static __always_inline u64 completed_by(const struct automaton *automaton, u32 edge)
{
	return automaton->slots[edge / (CLASSES * EDGE_SIZE) & (STATES - 1)];
}

/* Bytes of a text that one function looks at. The verifier follows each turn of a loop: in parts these are few. */
#define TEXT_PART 64

/* Follows a part of the text at an offset. Answers with the last edge, and with EDGE_COMPLETES in the upper half if any
 * pattern was completed: with less to do for each byte than it takes to find out which, because most have none. */
__noinline u64 follow_part(u32 bank, u32 at, u32 len, u32 edge)
{
	struct scratch *s = working_memory();
	const struct automaton *automaton = bpf_map_lookup_elem(&automata, &bank);
	const u8 *text;
	u32 all = 0;

	if (!s || !automaton)
		return (u64)EDGE_COMPLETES << 32;
	bounded_or(at, PASSED_PATH + FILTER_PATH_LIMIT, (u64)EDGE_COMPLETES << 32);
	text = at_offset(s, at);
	for (u32 i = 0; i < TEXT_PART; i++) {
		if (i >= len)
			break;
		edge = next_edge(automaton, edge, text[i]);
		all |= edge;
	}
	return edge | (u64)(all & EDGE_COMPLETES) << 32;
}

/* The same; adds the slots of patterns that are completed to those in the working memory. */
__noinline u32 collect_part(u32 bank, u32 at, u32 len, u32 edge)
{
	struct scratch *s = working_memory();
	const struct automaton *automaton = bpf_map_lookup_elem(&automata, &bank);
	const u8 *text;
	u64 found = 0;

	if (!s)
		return 0;
	if (!automaton) {
		s->by_text = ALL_SLOTS;
		return 0;
	}
	bounded(at, PASSED_PATH + FILTER_PATH_LIMIT);
	text = at_offset(s, at);
	for (u32 i = 0; i < TEXT_PART; i++) {
		if (i >= len)
			break;
		edge = next_edge(automaton, edge, text[i]);
		/* No branch: one in each turn would be two ways for the verifier to follow. */
		found |= completed_by(automaton, edge);
	}
	s->by_text |= found;
	return edge;
}

/* Slots with a pattern that the text at one of the two places has. */
__noinline u64 slots_of_text(u32 bank, u32 is_passed, u32 len)
{
	struct scratch *s = working_memory();
	const struct automaton *automaton = bpf_map_lookup_elem(&automata, &bank);
	u32 place = is_passed ? PASSED_PATH : TRUE_PATH, first, edge, all;

	if (!s || !automaton || len > FILTER_PATH_LIMIT)
		return ALL_SLOTS;
	first = edge = all = next_edge(automaton, 0, 0);
	for (u32 i = 0; i < FILTER_PATH_LIMIT; i += TEXT_PART) {
		u64 found;

		if (i >= len)
			break;
		found = follow_part(bank, place + i, len - i, edge);
		edge = found;
		all |= found >> 32;
	}
	all |= next_edge(automaton, edge, 0);
	if (!(all & EDGE_COMPLETES))
		return 0;
	s->by_text = completed_by(automaton, first);
	edge = first;
	for (u32 i = 0; i < FILTER_PATH_LIMIT; i += TEXT_PART) {
		if (i >= len)
			break;
		edge = collect_part(bank, place + i, len - i, edge);
	}
	return s->by_text | completed_by(automaton, next_edge(automaton, edge, 0));
}

/* A word of a text of so many bytes. What is behind its end, of which `last` says what belongs to it, is not
 * part of it. */
static __always_inline u64 word_of(const u64 *text, u32 i, u32 len, u64 last)
{
	return text[i] & (i * 8 + 8 < len ? ~0ULL : last);
}

/* Slots with a pattern that the path has that was passed. */
static __always_inline u64 slots_of_passed(struct scratch *s, u32 version, u32 len)
{
	const u64 *text = at_offset(s, PASSED_PATH);
	struct remembered *known;
	u64 slots, hash = len, differ = 0, last = ~0ULL;
	u32 at;

	if (len < 1 || len > REMEMBERED_TEXT)
		return slots_of_text(version & 1, 1, len);
	if (len & 7)
		last >>= 64 - 8 * (len & 7);
	/* Through memory, where the verifier forgets what it knew of the length: else it would follow every
	 * length through what comes behind each loop. */
	s->used = len;
#pragma unroll
	for (u32 i = 0; i < REMEMBERED_TEXT / 8; i++) {
		if (i * 8 >= len)
			break;
		/* The golden ratio, whose bits are spread evenly. */
		hash = (hash ^ word_of(text, i, len, last)) * 0x9e3779b97f4a7c15ULL;
	}
	len = s->used;
	at = hash >> 32 & (REMEMBERED - 1);
	known = bpf_map_lookup_elem(&remembered, &at);
	if (!known)
		return slots_of_text(version & 1, 1, len);
	if (known->len == len && known->version == version) {
#pragma unroll
		for (u32 i = 0; i < REMEMBERED_TEXT / 8; i++) {
			if (i * 8 >= len)
				break;
			differ |= known->text[i] ^ word_of(text, i, len, last);
		}
		len = s->used;
		if (!differ)
			return known->slots;
	}
	slots = slots_of_text(version & 1, 1, len);
	known->len = len;
	known->version = version;
	known->slots = slots;
#pragma unroll
	for (u32 i = 0; i < REMEMBERED_TEXT / 8; i++) {
		if (i * 8 >= len)
			break;
		known->text[i] = word_of(text, i, len, last);
	}
	return slots;
}

/* What differs between eight bytes of a text and of a name of the kernel's. What is behind the end of the name may not
 * be there: then it reads as 0. */
static __always_inline u64 differing(const u8 *text, u64 name)
{
	/* Any structure that begins with a word. */
	return *(u64 *)text ^ (u64)at_kernel(name, struct timespec64)->tv_sec;
}

/* Names that are as long as this are compared without a function. */
#define SHORT_NAME 24
/* So many bytes of longer ones are compared before. */
#define NAME_BEGIN 16

/* Whether the path that was passed has this name of the kernel's at `at`, of which the first NAME_BEGIN bytes
 * are known to be the same. */
__noinline int is_name(u32 at, u64 name, u32 len)
{
	struct scratch *s = working_memory();
	const u8 *text;

	if (!LOADS || !s || at > FILTER_PATH_LIMIT)
		return 0;
	text = at_offset(s, PASSED_PATH + at);
	for (u32 i = NAME_BEGIN; i + 8 <= COMPONENT_LIMIT; i += 8) {
		if (i + 8 > len)
			break;
		if (differing(text + i, name + i))
			return 0;
	}
	/* The last eight bytes, some of them once more. */
	len -= 8;
	bounded(len, COMPONENT_LIMIT);
	return differing(text + len, name + len) == 0;
}

/* Answers of is_at_part beside 0 and 1. */
#define NOT_YET 2

/* Compares the names on a part of the way up to a root with the end of the path that was passed, of which `used` bytes
 * are left. Answers with 1 if they are the same up to the root. */
__noinline int is_at_part(u64 root_dentry, u64 root_mount)
{
	struct scratch *s = working_memory();
	struct dentry *dentry, *mount_root;
	struct mount *mount;

	if (!LOADS || !s)
		return 0;
	dentry = at_kernel(s->at_dentry, struct dentry);
	mount = at_kernel(s->at_mount, struct mount);
	mount_root = mount->mnt.mnt_root;
	for (u32 i = 0; i < PART; i++) {
		u32 left = s->used, name_len;
		const u8 *text;
		u64 name, differ;

		if ((u64)dentry == root_dentry && (u64)mount == root_mount)
			return left == 0;
		if (dentry == mount_root) {
			struct mount *above = mount->mnt_parent;

			if (above == mount)
				return 0;
			dentry = mount->mnt_mountpoint;
			mount = above;
			mount_root = mount->mnt.mnt_root;
			continue;
		}
		name_len = dentry->d_name.len;
		if (name_len < 1 || name_len >= left || name_len >= COMPONENT_LIMIT)
			return 0;
		left -= name_len;
		if (left > FILTER_PATH_LIMIT)
			return 0;
		if (*(u8 *)at_offset(s, PASSED_PATH + left - 1) != '/')
			return 0;
		name = (u64)dentry->d_name.name;
		text = at_offset(s, PASSED_PATH + left);
		differ = differing(text, name);
		if (name_len < 8)
			differ <<= 64 - 8 * name_len;
		else if (name_len > 8) {
			u32 last = name_len - 8;

			bounded(last, COMPONENT_LIMIT);
			differ |= differing(text + last, name + last);
		}
		if (name_len > 16)
			differ |= differing(text + 8, name + 8);
		if (differ)
			return 0;
		if (name_len > SHORT_NAME && !is_name(left, address_of(s, (void *)name), name_len))
			return 0;
		s->used = left - 1;
		dentry = dentry->d_parent;
	}
	s->at_dentry = (u64)dentry;
	s->at_mount = (u64)mount;
	return NOT_YET;
}

/* Whether the path that was passed, of `len` bytes, is the file's own, seen from a root: its names are compared
 * from the last to the first, without a copy. A no may be wrong. */
static __always_inline bool is_at(struct scratch *s, struct file *file, u32 len, u64 root_dentry, u64 root_mount)
{
	u32 offset = bpf_core_field_offset(struct mount, mnt);

	if (!LOADS || len > FILTER_PATH_LIMIT)
		return false;
	s->at_dentry = (u64)READ(file, f_path.dentry);
	s->at_mount = (u64)READ(file, f_path.mnt) - offset;
	s->used = len;
	for (u32 i = 0; i < COMPONENTS / PART; i++) {
		int found = is_at_part(root_dentry, root_mount - offset);

		if (found != NOT_YET)
			return found;
	}
	return false;
}

/* Slots that the file's own path has. */
static __always_inline u64 slots_of_file(struct scratch *s, u32 bank, struct file *file, u32 *len)
{
	u32 found;

	s->header.size = sizeof(struct header);
	found = take_path(address_of(s, READ(file, f_path.dentry)),
			  address_of(s, READ(file, f_path.mnt)), TRUE_PATH);
	*len = found & 0xffff;
	if (is_partial(found))
		return ALL_SLOTS;
	return slots_of_text(bank, 0, *len);
}

static __always_inline const struct asked *asked_by(u32 bank)
{
	return bank ? &control.asked[1] : &control.asked[0];
}

/* Puts a string of the caller's where paths that are passed stand. Answers with its length, or -1 if it
 * cannot be read or is too long. */
static __always_inline long read_passed(struct scratch *s, u64 address)
{
	long len = bpf_probe_read_user_str(at_offset(s, PASSED_PATH), FILTER_PATH_LIMIT,
					   (void *)address);

	return len < 1 || len >= FILTER_PATH_LIMIT ? -1 : len - 1;
}

/* Slots that take names of an opened file beside those that were judged, of which one stands at `place`: those that
 * rules have for its inode, and the path that begins at the root of the mount namespace. */
static __always_inline u64 by_other_names(struct scratch *s, struct task_struct *caller, u32 bank,
					  struct file *file, u32 place)
{
	u64 slots = by_inodes(s, bank, file, place);
	u32 found;

	if (has_whole_root(caller))
		return slots;
	found = take_whole_path(s, file, TRUE_PATH);
	if (is_partial(found))
		return ALL_SLOTS;
	return slots | slots_of_text(bank, 0, found & 0xffff);
}

/* Slots that take a file that was opened by the path that stands there: by the file, and by an absolute
 * path that was passed, which a symbolic link may lead elsewhere. */
static __always_inline u64 by_opened(struct scratch *s, struct task_struct *caller, u32 version, s64 result,
				     u32 len)
{
	u32 bank = version & 1, true_len = 0, place;
	u64 slots, dotted = asked_by(bank)->dotted;
	struct file *file = NULL;

	if (len < 1 || len >= FILTER_PATH_LIMIT)
		return ALL_SLOTS;
	if (result >= 0) {
		file = (void *)file_of_caller(s, caller, result);
		if (!file)
			return ALL_SLOTS;
	}
	slots = slots_of_passed(s, version, len);
	if (*(u8 *)at_offset(s, PASSED_PATH) == '/') {
		/* The agent makes another path of it. */
		if (slots & (SLOT_ODD | SLOT_DOTTED))
			return ALL_SLOTS;
		if (!file)
			return slots & SLOT_TRAILING ? ALL_SLOTS : slots & ~dotted;
		place = PASSED_PATH;
		if (!is_at(s, file, len, address_of(s, caller->fs->root.dentry),
			   address_of(s, caller->fs->root.mnt))) {
			slots |= slots_of_file(s, bank, file, &true_len);
			place = TRUE_PATH;
		}
		slots |= by_other_names(s, caller, bank, file, place);
		return slots & ~dotted;
	}
	if (!(slots & SLOT_DOTTED))
		dotted = ~dotted;
	else
		dotted = ALL_SLOTS;
	/* What was opened says it all; a failure says nothing. */
	if (!file)
		return ALL_SLOTS & dotted;
	slots = slots_of_file(s, bank, file, &true_len);
	slots |= by_other_names(s, caller, bank, file, TRUE_PATH);
	return slots & dotted;
}

/* As by_opened: its own function, so that the verifier looks at it once. */
__noinline u64 by_opened_once(u32 version, s64 result, u32 len)
{
	struct scratch *s = working_memory();

	return s ? by_opened(s, caller_task(), version, result, len) : ALL_SLOTS;
}

/* The same by the path's address. */
static __always_inline u64 by_path(struct scratch *s, u32 version, s64 result, u64 passed)
{
	long len = read_passed(s, passed);

	return len < 1 ? ALL_SLOTS : by_opened_once(version, result, len);
}

#define ODD_PATH (SLOT_ODD | SLOT_DOTTED | SLOT_TRAILING)

/* Slots that take a string that was passed, or the path that it makes with its directory. */
__noinline u64 by_string(u32 key, u32 index)
{
	struct scratch *s = working_memory();
	struct row *row = bpf_map_lookup_elem(&rows, &key);
	const struct fetch *fetch;
	u64 passed, slots, whole;
	u32 bank = key >= ROWS, found, used;
	int base = AT_FDCWD;
	long len;
	u8 *to;

	if (!s || !row || index >= FETCHES)
		return ALL_SLOTS;
	fetch = &row->fetch[index];
	passed = s->header.args[fetch->arg < 6 ? fetch->arg : 0];
	len = read_passed(s, passed);
	/* Memory at address 0 is for the privileged, and rare; without it a null pointer names nothing. */
	if (len < 0)
		return passed ? ALL_SLOTS : 0;
	slots = slots_of_text(bank, 1, len);
	if (slots & ODD_PATH)
		return ALL_SLOTS;
	if (*(u8 *)at_offset(s, PASSED_PATH) == '/')
		return slots;
	if (fetch->kind == FETCH_PATH && fetch->other < 6)
		base = s->header.args[fetch->other];
	found = take_base(s, base, TRUE_PATH);
	if (!found || is_partial(found))
		return ALL_SLOTS;
	/* The root has its slash already. */
	used = found & 0xffff;
	if (used == 1)
		used = 0;
	if (used + len + 1 > FILTER_PATH_LIMIT)
		return ALL_SLOTS;
	asm volatile("" : "+r"(used), "+r"(len));
	if (used > FILTER_PATH_LIMIT || len < 0 || len > FILTER_PATH_LIMIT)
		return ALL_SLOTS;
	to = at_offset(s, TRUE_PATH + used);
	*to = '/';
	if (bpf_probe_read_kernel(to + 1, len, at_offset(s, PASSED_PATH)))
		return ALL_SLOTS;
	whole = slots_of_text(bank, 0, used + len + 1);
	return whole & ODD_PATH ? ALL_SLOTS : slots | whole;
}

/* Slots that take one of the strings of a call. */
static __always_inline u64 by_strings(const struct row *row, u32 key)
{
	u64 slots = 0;

	for (u32 i = 0; i < FETCHES; i++) {
		if (i >= row->fetches)
			break;
		if (row->fetch[i].kind == FETCH_PATH || row->fetch[i].kind == FETCH_TEXT)
			slots |= by_string(key, i);
	}
	return slots;
}

#define AF_UNIX 1
#define AF_INET 2
#define AF_INET6 10
#define AF_UNSPEC 0
#define EBADF 9

/* Adds what takes the end of a connection that stands in the working memory. */
__noinline int add_end(u32 bank)
{
	struct scratch *s = working_memory();
	const struct asked *asked = asked_by(bank);
	struct port_key port = { .bank = bank };
	struct network_key network = { .bank = bank, .version = 4, .prefix = 32 + 32 };
	u32 *word;
	u64 *found;

	if (!s)
		return 0;
	if (s->family == AF_UNIX)
		s->by_family |= asked->family[FAMILY_UNIX];
	if (s->family != AF_INET && s->family != AF_INET6)
		return 0;
	s->by_family |= asked->family[FAMILY_IPV4];
	word = (u32 *)s->address;
	__builtin_memcpy(network.address, s->address, sizeof(network.address));
	if (s->family == AF_INET6) {
		/* One whose addresses are IPv4's counts as such. */
		s->by_family |= asked->family[FAMILY_IPV6];
		if (word[0] == 0 && word[1] == 0 && word[2] == __builtin_bswap32(0xffff)) {
			__builtin_memset(network.address, 0, sizeof(network.address));
			__builtin_memcpy(network.address, &s->address[12], 4);
		} else {
			network.version = 6;
			network.prefix = 32 + 128;
		}
	}
	port.port = s->port;
	found = bpf_map_lookup_elem(&ports, &port);
	if (found)
		s->by_port |= *found;
	found = bpf_map_lookup_elem(&networks, &network);
	if (found)
		s->by_network |= *found;
	return 0;
}

/* Adds both ends that a socket has by now. */
static __always_inline void add_socket(struct scratch *s, u32 bank, struct file *file)
{
	struct file_facts *facts = at_offset(s, TRUE_PATH);

	__builtin_memset(facts, 0, sizeof(*facts));
	socket_facts(facts, file);
	s->family = facts->family;
	s->port = facts->local_port;
	__builtin_memcpy(s->address, facts->local, sizeof(s->address));
	add_end(bank);
	s->port = facts->remote_port;
	__builtin_memcpy(s->address, facts->remote, sizeof(s->address));
	add_end(bank);
	if (facts->family != AF_UNIX && facts->family != AF_INET && facts->family != AF_INET6)
		s->by_family |= asked_by(bank)->family[FAMILY_OTHER];
}

/* struct sockaddr_in6 */
#define ADDRESS_BYTES 28

/* Adds an address that was passed. Answers with not 0 if it cannot be read. */
static __always_inline int add_address(struct scratch *s, u32 bank, u64 address, u32 len)
{
	u8 *bytes = at_offset(s, PASSED_PATH);

	if (!address || !len)
		return 0;
	if (len > ADDRESS_BYTES)
		len = ADDRESS_BYTES;
	__builtin_memset(bytes, 0, 32);
	bounded_or(len, ADDRESS_BYTES, -1);
	if (bpf_probe_read_user(bytes, len, (void *)address))
		return -1;
	s->family = *(u16 *)bytes;
	/* The kernel takes it for IPv4 where it sends a datagram and where it binds. */
	if (s->family == AF_UNSPEC)
		s->family = AF_INET;
	s->port = __builtin_bswap16(*(u16 *)(bytes + 2));
	__builtin_memset(s->address, 0, sizeof(s->address));
	if (s->family == AF_INET)
		__builtin_memcpy(s->address, bytes + 4, 4);
	else
		__builtin_memcpy(s->address, bytes + 8, sizeof(s->address));
	add_end(bank);
	return 0;
}

/* Slots that take the ends of the connection that a call is about: the socket's own, and what was passed. */
__noinline u64 by_socket(u32 key, u32 width)
{
	struct scratch *s = working_memory();
	struct row *row = bpf_map_lookup_elem(&rows, &key);
	u32 bank = key >= ROWS, len = 0;
	const struct asked *asked = asked_by(bank);
	u64 address = 0;
	struct file *file = NULL;
	s64 number;

	if (!s || !row)
		return ALL_SLOTS;
	s->by_port = asked->any_port;
	s->by_network = asked->any_network;
	s->by_family = 0;
	number = row->file_arg == RESULT_FILE ? (s64)s->header.result :
						(s64)(s32)s->header.args[row->file_arg < 6 ? row->file_arg : 0];
	if (number >= 0)
		file = (void *)file_of(s, number);
	/* One that was open during the call and is not any more may have been anything. */
	if (number >= 0 && !file && (s64)s->header.result != -EBADF)
		return ALL_SLOTS;
	if (file && is_socket(file))
		add_socket(s, bank, file);
	else
		s->by_family |= asked->family[FAMILY_OTHER];
	if (row->message_arg < 6) {
		u64 message = s->header.args[row->message_arg];

		/* Each may have an address of its own. */
		if (row->length_arg < 6 && (u32)s->header.args[row->length_arg] > 1)
			return ALL_SLOTS;
		if (bpf_probe_read_user(&address, width == 4 ? 4 : 8, (void *)message) ||
		    bpf_probe_read_user(&len, sizeof(len), (void *)(message + width)))
			return ALL_SLOTS;
	} else if (row->address_arg < 6 && row->length_arg < 6) {
		address = s->header.args[row->address_arg];
		len = s->header.args[row->length_arg];
	}
	if (add_address(s, bank, address, len))
		return ALL_SLOTS;
	return s->by_port & s->by_network & s->by_family;
}

/* Slots that take the place of the process. */
static __always_inline u64 by_place(const struct asked *asked)
{
	int place = place_of_caller();

	if (place & PLACE_HOST)
		return asked->host;
	if (place & PLACE_CONTAINER)
		return asked->container;
	return ALL_SLOTS;
}

/* Slots that take the name of the process at its last exec. */
static __always_inline u64 by_name(u32 bank)
{
	struct task_struct *leader = caller_task()->group_leader;
	struct name_key key = { .bank = bank };
	s32 pid = bpf_get_current_pid_tgid() >> 32;
	u64 *slots;

	/* The agent knows the name. */
	if (names_unknown || bpf_map_lookup_elem(&renamed, &pid))
		return ALL_SLOTS;
	/* Older kernels leave something behind the NUL. */
	bpf_core_read_str(&key.comm, sizeof(key.comm), &leader->comm);
	slots = bpf_map_lookup_elem(&names, &key);
	return slots ? *slots : 0;
}

/* What is left of the slots when all that they ask for has been looked at. What is cheap and leaves little
 * goes first: most calls end at the path. */
static __always_inline u64 narrowed(struct scratch *s, u32 version,
				    const struct row *row, u32 key, u32 abi, u64 slots)
{
	u32 bank = version & 1;
	const struct asked *asked = asked_by(bank);
	u64 any = asked->any, any_place;

	if (slots & any)
		return slots;
	if (slots & ~asked->any_path && row->flags & ROW_OPENS)
		slots &= asked->any_path |
			 by_path(s, version, s->header.result,
				 s->header.args[row->path_arg < 6 ? row->path_arg : 0]);
	else if (slots & ~asked->any_path && row->flags & ROW_PATHS)
		slots &= asked->any_path | by_strings(row, key);
	if (!slots) {
		count(COUNT_PATH);
		return 0;
	}
	if (slots & any)
		return slots;
	if (slots & ~asked->any_end && row->flags & ROW_SOCKET)
		slots &= asked->any_end | by_socket(key, abi == ABI_NATIVE ? 8 : 4);
	if (!slots) {
		count(COUNT_SOCKET);
		return 0;
	}
	if (slots & ~asked->any_name)
		slots &= asked->any_name | by_name(bank);
	if (!slots) {
		count(COUNT_NAME);
		return 0;
	}
	any_place = asked->host & asked->container;
	if (slots & ~any_place && !(slots & any))
		slots &= by_place(asked);
	if (!slots)
		count(COUNT_PLACE);
	return slots;
}

#endif
