// SPDX-License-Identifier: Apache-2.0
/* normal.pml: consecutive operations of normal mode: notices with epochs, granted regions, pushed
 * rows, `finished` counts; combines that pull, and their acknowledgement. README.md says how to run
 * it and what it leaves out.
 *
 * Three PEs make the same OPERATIONS. The messages between SOURCE and OWNER are modelled store by
 * store: SOURCE pushes two rows into a region of OWNER and pulls the expert output from there. The
 * protocol is the same for every pair of PEs, so the others are counted: begun[m] stands for the
 * notice and `entered` of PE m, fetched[m] for its `finished`.
 *
 * Memory is weakly ordered: a store is first in flight (..._flies), and the process Wires lets it
 * arrive at any later time and in any order. A release (`entered`, an add to `finished`) arrives
 * after the earlier stores of its block.
 *
 * Mutations, each of which must fail: NO_GRANT NO_ACK ACK_EARLY FLAG_BEFORE_ROW
 * ENTERED_BEFORE_NOTICE ONE_NOTICE ONE_BLOCK
 */
#define PES 3
#define SOURCE 0
#define OWNER 1

/* Operations are chosen at run time, the same on all PEs: dispatches while there is room,
 * combines of any held result, operations that all ranks refuse. Every order is tried, including
 * two dispatches in a row. */
#ifndef OPERATIONS
#define OPERATIONS 6
#endif
#define DISPATCH 1
#define COMBINE 2
#define REFUSED 3
byte kind[OPERATIONS + 1];      /* 0: not chosen yet */
byte region[OPERATIONS + 1];    /* of OWNER: where the rows go, or the expert output lies */
byte combined[OPERATIONS + 1];  /* combine: the dispatch */
byte held[2];                   /* by region: the dispatch of the result; 0: free */

inline choose(e) {
  if
  :: kind[e] != 0
  :: kind[e] == 0 -> kind[e] = REFUSED
  :: kind[e] == 0 && held[0] == 0 -> kind[e] = DISPATCH; region[e] = 0; held[0] = e
  :: kind[e] == 0 && held[0] != 0 && held[1] == 0 -> kind[e] = DISPATCH; region[e] = 1; held[1] = e
  :: kind[e] == 0 && held[0] != 0 -> kind[e] = COMBINE; region[e] = 0; combined[e] = held[0]; held[0] = 0
  :: kind[e] == 0 && held[1] != 0 -> kind[e] = COMBINE; region[e] = 1; combined[e] = held[1]; held[1] = 0
  fi
}

/* Blocks of SOURCE's launch; each adds to `finished`. The last one has the remaining rows. */
#define BLOCKS(e) (1 + ((e) & 1))
#define ROWS 2

/* Values of a row: of dispatch e, its expert output, what the caller writes afterwards. */
#define ROW(e) (e)
#define EXPERT_OUTPUT(e) (16 + (e))
#define CHANGED 99

#ifdef ONE_NOTICE
#define HALF(e) 0
#else
#define HALF(e) ((e) & 1)
#endif

/* Memory of SOURCE, which OWNER writes: its notice with the address of the region. */
byte region_epoch[2], region_at[2], entered_at_source;
/* Memory of OWNER, which SOURCE writes: its notice with the number of blocks. */
byte blocks_epoch[2], blocks_at[2], entered_at_owner, finished;
byte row[4];  /* [region * ROWS + row] */

/* In flight; 0: nothing. */
byte region_flies[2], blocks_flies[2];  /* epochs */
byte entered_at_source_flies[2], entered_at_owner_flies[2];  /* one may follow another */
byte row_flies[ROWS], row_to[ROWS];  /* value, and row of OWNER */
bit add_flies[ROWS];                 /* of each block */
byte add_epoch;

/* Per PE: operations that it has begun, and those whose rows it has written or fetched. */
byte begun[PES], fetched[PES];

/* Only for assertions: the dispatch whose rows may arrive in a region; 0: none. */
byte granted[2];

#define CLOSE(a, b) (begun[a] <= begun[b] + 1 && begun[b] <= begun[a] + 1)

inline publish(e) {
  atomic {
    choose(e);
    begun[_pid] = e;
    assert(CLOSE(0, 1) && CLOSE(1, 2) && CLOSE(0, 2));  /* one operation ahead, never two */
    if
    :: _pid == OWNER ->
      assert(entered_at_source_flies[e & 1] == 0);
      region_flies[HALF(e)] = e;
      entered_at_source_flies[e & 1] = e;
      if
      :: kind[e] == DISPATCH -> granted[region[e]] = e
      :: else
      fi
    :: _pid == SOURCE ->
      assert(entered_at_owner_flies[e & 1] == 0);
      blocks_flies[HALF(e)] = e;
      entered_at_owner_flies[e & 1] = e
    :: else
    fi
  }
}

#define OTHERS_HAVE(word, e) \
  ((_pid == 0 || word[0] >= e || _pid == OWNER && SOURCE == 0) && \
   (_pid == 1 || word[1] >= e || _pid == SOURCE && OWNER == 1) && (_pid == 2 || word[2] >= e))

inline await_notices(e) {
  OTHERS_HAVE(begun, e);
  if
  :: _pid == OWNER -> entered_at_owner >= e
#ifndef NO_GRANT
  :: _pid == SOURCE ->
    entered_at_source >= e;
    d_step {
      /* the notice has arrived and belongs to this operation */
      assert(region_epoch[HALF(e)] == e);
      to = region_at[HALF(e)]
    }
#else
  :: _pid == SOURCE -> to = region[e]
#endif
  :: else
  fi
}

#define LAST_ROW(e, b) ((b) + 1 == BLOCKS(e) -> ROWS - 1 : (b))

#define NOTHING_FLIES (row_flies[0] == 0 && row_flies[1] == 0 && add_flies[0] == 0 && add_flies[1] == 0)

/* A block of SOURCE stores its rows, then adds to `finished`. */
inline push_rows(e) {
  d_step {
#ifdef NO_GRANT
    NOTHING_FLIES;
#else
    assert(NOTHING_FLIES);
#endif
    row_flies[0] = ROW(e);
    row_to[0] = to * ROWS;
    row_flies[1] = ROW(e);
    row_to[1] = to * ROWS + 1;
    add_epoch = e;
    add_flies[0] = 1;
    add_flies[1] = BLOCKS(e) - 1
  }
}

inline fetch_row(b) {
  assert(row[to * ROWS + b] == EXPERT_OUTPUT(combined[e]))
}

inline add_later(b) {
  d_step {
#ifdef NO_GRANT
    NOTHING_FLIES;
#else
    assert(add_flies[b] == 0);
#endif
    add_epoch = e;
    add_flies[b] = 1
  }
}

/* A block of SOURCE pulls its rows, then adds to `finished`. */
inline fetch_rows(e) {
#ifdef ACK_EARLY
  add_later(0);
#endif
  fetch_row(0);
  if
  :: BLOCKS(e) == 1 -> fetch_row(1)
  :: else
  fi;
#ifndef ACK_EARLY
  add_later(0);
#endif
  if
  :: BLOCKS(e) == 2 ->
    fetch_row(1);
    add_later(1)
  :: else
  fi
}

/* The last block of a launch waits for all blocks of all PEs. */
inline await_finished(e) {
#ifdef NO_ACK
  if
  :: kind[e] == COMBINE && _pid == OWNER
  :: else -> OTHERS_HAVE(fetched, e)
  fi;
#else
  OTHERS_HAVE(fetched, e);
#endif
  if
  :: _pid == OWNER ->
    d_step {
      assert(blocks_epoch[HALF(e)] == e);  /* read again after this PE's own `finished` */
#ifdef ONE_BLOCK
      wanted = wanted + 1
#else
      wanted = wanted + blocks_at[HALF(e)]
#endif
    };
#ifdef NO_ACK
    kind[e] == COMBINE || finished >= wanted
#else
    finished >= wanted
#endif
  :: else
  fi
}

/* Actions of the caller of OWNER between the calls. */
inline use_result(e) {
  d_step {
    if
    /* the rows have been pulled: they may change, and the region is released */
    :: kind[e] == COMBINE ->
      row[region[e] * ROWS] = CHANGED;
      row[region[e] * ROWS + 1] = CHANGED
    :: else ->
      assert(row[region[e] * ROWS] == ROW(e) && row[region[e] * ROWS + 1] == ROW(e));
      granted[region[e]] = 0;
      row[region[e] * ROWS] = EXPERT_OUTPUT(e);
      row[region[e] * ROWS + 1] = EXPERT_OUTPUT(e)
    fi
  }
}

active [PES] proctype Pe() {
  byte e = 1, to, wanted;
  do
  :: e > OPERATIONS -> break
  :: else ->
    publish(e);
    await_notices(e);
    if
    :: kind[e] == REFUSED  /* all ranks see this in the notices; no rank waits */
    :: else ->
      if
      :: _pid == SOURCE && kind[e] == DISPATCH -> push_rows(e)
      :: _pid == SOURCE && kind[e] == COMBINE -> fetch_rows(e)
      :: else
      fi;
      fetched[_pid] = e;
      await_finished(e);
      if
      :: _pid == OWNER -> use_result(e)
      :: else
      fi
    fi;
    e++
  od
}

/* A release: after the notice, and after the previous release. */
#ifdef ENTERED_BEFORE_NOTICE
#define NOTICE_IS_THERE(notice, flies, h) true
#else
#define NOTICE_IS_THERE(notice, flies, h) (notice[HALF(h)] == 0 && (flies[1 - h] == 0 || flies[1 - h] > flies[h]))
#endif

#ifdef FLAG_BEFORE_ROW
#define ROWS_ARE_THERE(b) true
#else
#define ROWS_ARE_THERE(b) (row_flies[b] == 0 && row_flies[LAST_ROW(add_epoch, b)] == 0)
#endif

inline arrive_region(h) {
  region_epoch[h] = region_flies[h];
  region_at[h] = region[region_flies[h]];
  region_flies[h] = 0
}

inline arrive_blocks(h) {
  blocks_epoch[h] = blocks_flies[h];
  blocks_at[h] = BLOCKS(blocks_flies[h]);
  blocks_flies[h] = 0
}

#define AT_SOURCE(h) entered_at_source_flies[h] && NOTICE_IS_THERE(region_flies, entered_at_source_flies, h)
#define AT_OWNER(h) entered_at_owner_flies[h] && NOTICE_IS_THERE(blocks_flies, entered_at_owner_flies, h)

#define ARRIVE_ENTERED(word, flies, h) word = flies[h]; flies[h] = 0

inline arrive_row(b) {
  /* only into a region granted for this dispatch */
  assert(granted[row_to[b] / ROWS] == row_flies[b]);
  row[row_to[b]] = row_flies[b];
  row_flies[b] = 0;
  row_to[b] = 0
}

inline arrive_add(b) {
  finished++;
  add_flies[b] = 0
}

active proctype Wires() {
end:
  do
  :: d_step { region_flies[0] -> arrive_region(0) }
  :: d_step { region_flies[1] -> arrive_region(1) }
  :: d_step { blocks_flies[0] -> arrive_blocks(0) }
  :: d_step { blocks_flies[1] -> arrive_blocks(1) }
  :: d_step { AT_SOURCE(0) -> ARRIVE_ENTERED(entered_at_source, entered_at_source_flies, 0) }
  :: d_step { AT_SOURCE(1) -> ARRIVE_ENTERED(entered_at_source, entered_at_source_flies, 1) }
  :: d_step { AT_OWNER(0) -> ARRIVE_ENTERED(entered_at_owner, entered_at_owner_flies, 0) }
  :: d_step { AT_OWNER(1) -> ARRIVE_ENTERED(entered_at_owner, entered_at_owner_flies, 1) }
  :: d_step { row_flies[0] -> arrive_row(0) }
  :: d_step { row_flies[1] -> arrive_row(1) }
  :: d_step { add_flies[0] && ROWS_ARE_THERE(0) -> arrive_add(0) }
  :: d_step { add_flies[1] && ROWS_ARE_THERE(1) -> arrive_add(1) }
  od
}
