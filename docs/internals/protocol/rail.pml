// SPDX-License-Identifier: Apache-2.0
/* rail.pml: chunks from a rank to its rail peer, between nodes: a ring of slots, a word for each
 * slot at both ends, several blocks on each side, and a network that delivers puts and signals late
 * and in any order. README.md says how to run it.
 *
 * Blocks of the sender take chunks in order, write them and put them; a put returns when it is
 * complete. Blocks of the receiver take chunks in order and read them. With TILES they take tiles
 * of tokens instead, as a combine does: a tile has the last sum of one chunk and the first of the
 * next one; who reads the last sum of a chunk releases it.
 *
 * Mutations, each of which must fail: NO_CREDIT ARRIVED_FIRST RELEASE_EARLY ONE_WORD ONE_SLOT
 */
#define BLOCKS 2
#define CHUNKS 5
#ifdef ONE_SLOT
#define DEPTH 1
#else
#define DEPTH 2
#endif

/* Chunk c contains c + 1 and uses slot c % DEPTH. */
byte out[DEPTH];                    /* of the sender */
byte in[DEPTH], arrived[DEPTH];     /* of the receiver */
byte released[DEPTH];               /* of the sender: the word `read` of the page */
byte send_next, receive_next;       /* taken by blocks */
byte consumed[DEPTH];               /* TILES: sums of the chunk in a slot */

/* In flight. A put: 1 posted, 2 its data have arrived, 3 complete. A signal: 1 posted. */
byte put_flies[CHUNKS];
bit release_flies[CHUNKS];

#ifdef NO_CREDIT
#define MAY_SEND(c) true
#else
#define MAY_SEND(c) ((c) < DEPTH || released[(c) % DEPTH] + DEPTH > (c))
#endif
#ifdef ONE_WORD
#define WORD(c) 0
#else
#define WORD(c) ((c) % DEPTH)
#endif
#define HAS_ARRIVED(c) (arrived[WORD(c)] > (c))

proctype Sender() {
  byte c;
  do
  :: atomic {
       send_next < CHUNKS && MAY_SEND(send_next) -> c = send_next; send_next++
     }
     out[c % DEPTH] = c + 1;
     put_flies[c] = 1;
     put_flies[c] == 3
  :: send_next == CHUNKS -> break
  od
}

inline read_chunk(c) {
  assert(in[(c) % DEPTH] == (c) + 1)
}

inline release(c) {
  release_flies[c] = 1
}

/* One sum of a chunk. */
inline consume(c) {
  read_chunk(c);
  atomic {
    consumed[(c) % DEPTH]++;
    if
    :: consumed[(c) % DEPTH] == 2 -> consumed[(c) % DEPTH] = 0; release(c)
    :: else
    fi
  }
}

proctype Receiver() {
  byte c;
  do
#ifdef TILES
  /* tile t: the second sum of chunk t - 1, and the first one of chunk t */
  :: atomic {
       receive_next <= CHUNKS && (receive_next == 0 || HAS_ARRIVED(receive_next - 1)) &&
           (receive_next == CHUNKS || HAS_ARRIVED(receive_next)) ->
       c = receive_next; receive_next++
     }
     if
     :: c > 0 -> consume(c - 1)
     :: else
     fi;
     if
     :: c < CHUNKS -> consume(c)
     :: else
     fi
  :: receive_next > CHUNKS -> break
#else
  :: atomic {
       receive_next < CHUNKS && HAS_ARRIVED(receive_next) -> c = receive_next; receive_next++
     }
#ifdef RELEASE_EARLY
     release(c);
#endif
     read_chunk(c);  /* its first row */
     read_chunk(c);  /* its last row */
#ifndef RELEASE_EARLY
     release(c)
#endif
  :: receive_next == CHUNKS -> break
#endif
  od
}

inline arrive_data(c) {
  in[(c) % DEPTH] = out[(c) % DEPTH]
}
inline arrive_word(c) {
  arrived[WORD(c)] = (c) + 1
}
inline arrive_first(c) {
#ifdef ARRIVED_FIRST
  arrive_word(c);
#else
  arrive_data(c);
#endif
  put_flies[c] = 2
}
inline arrive_last(c) {
#ifdef ARRIVED_FIRST
  arrive_data(c);
#else
  arrive_word(c);
#endif
  put_flies[c] = 3
}
inline arrive_release(c) {
  released[(c) % DEPTH] = (c) + 1;
  release_flies[c] = 0
}

/* One for each chunk. */
proctype Wire(byte c) {
end:
  do
  :: d_step { put_flies[c] == 1 -> arrive_first(c) }
  :: d_step { put_flies[c] == 2 -> arrive_last(c) }
  :: d_step { release_flies[c] -> arrive_release(c) }
  od
}

init {
  atomic {
    byte i = 0;
    do
    :: i < BLOCKS -> run Sender(); run Receiver(); i++
    :: else -> break
    od;
    i = 0;
    do
    :: i < CHUNKS -> run Wire(i); i++
    :: else -> break
    od
  }
}
