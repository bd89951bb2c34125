// Made from src/hiwater/report/schemas/page.schema.json by `make web`; do not change it here.

/**
 * The data in a page of `hiwater report --format html` or `hiwater diff --format html`: base64 of a zlib stream that holds the length of this text (4 bytes, little-endian), this text as JSON, and the columns it speaks of. Sizes are bytes, times are nanoseconds since the recording began. Members are only ever added.
 */
export interface HiwaterPage {
  schema: "hiwater.page/3";
  /**
   * one for each process that was recorded, the first one first; of many processes, those with the highest peaks. All processes of a machine at one instant are one more, with `whole`
   */
  captures: Capture[];
  run?: Run;
}
export interface Capture {
  title: string;
  summary: Summary;
  /**
   * how far the allocated peak can be trusted, in words
   */
  exactness: string;
  /**
   * how exact the resident peak is, in words
   */
  resident_exactness: string;
  /**
   * what the command line asked for: the page opens there
   */
  asked: {
    at: "peak" | "end" | "slice" | "oom";
    slice: number | null;
    kind: string;
    by: string;
    inverted: boolean;
    /**
     * what is live at the end is shown first
     */
    kept: boolean;
  };
  files: {
    name: string;
    module: string;
    /**
     * an installed package's, the standard library's, or no Python file
     */
    library: boolean;
    /**
     * the import system's own
     */
    imports: boolean;
  }[];
  functions: string[];
  /**
   * A function at a line.
   */
  frames: {
    function: Column;
    file: Column;
    line: Column;
    part_of: Column;
    first_line: Column;
    gone?: Column;
  };
  /**
   * Call paths, depth first: all below a path stand right after it.
   */
  nodes: {
    above: Column;
    frame: Column;
  };
  threads: {
    /**
     * the path that stands for the thread
     */
    node: number;
    name: string;
  }[];
  /**
   * A call path with a kind of memory.
   */
  holders: {
    node: Column;
    kind: Column;
    sampled: Column;
    peak_bytes: Column;
    peak_blocks: Column;
    end_bytes: Column;
    end_blocks: Column;
    total_bytes: Column;
    total_blocks: Column;
    temporaries: Column;
    delta_bytes?: Column;
    before_peak_bytes?: Column;
    before_end_bytes?: Column;
  };
  /**
   * When what is live at the end was allocated; only where the capture has snapshots.
   */
  ages?: {
    /**
     * of markers, phases and intervals, from which the ages are known
     */
    snapshots: number;
    /**
     * for each holder, the bytes live at the end that were allocated in each quarter of the recording's time, the first one first
     *
     * @minItems 4
     * @maxItems 4
     */
    end_bytes: [Column, Column, Column, Column];
  };
  /**
   * The rows of summary.lines and the holders of each, so that any moment can be ranked; not in a page that compares two.
   */
  user_lines?: {
    rows: {
      group: "line" | "import" | "other";
      function: string;
      file: string;
      line: number;
      /**
       * types of the objects that are live at the end, most bytes first; of the lines with most, in a capture with a search for holders
       */
      types?: string[];
      /**
       * what holds most of them, empty where that is not known
       */
      held_by?: string;
    }[];
    row: Column;
    libraries: string[];
    library: Column;
    untouched_node: Column;
    untouched_bytes: Column;
    untouched_row: Column;
  };
  /**
   * By how much holders differ at a slice's high from the slice before, slice by slice: the sum of all changes up to a slice is what was held at its high.
   */
  changes: {
    count: Column;
    holder: Column;
    bytes: Column;
    blocks: Column;
  };
  merged: {
    /**
     * so many stacks were merged into their nearest callers' `[smaller stacks]`
     */
    stacks: number;
    /**
     * the most that any of them had at any moment
     */
    most_bytes: number;
  };
  /**
   * The recording cut in stretches of time, the open one last.
   */
  slices: {
    start_ns: Column;
    end_ns: Column;
    peak_ns: Column;
    peak_bytes: Column;
    unlisted_bytes: Column;
  };
  timeline: {
    at_ns: Column;
    /**
     * how many the capture has; the highest of their neighbours are here where those are too many
     */
    points: number;
    series: {
      name: string;
      group: "resident" | "kind" | "device" | "reserved" | "process" | "part";
      bytes: Column;
      at_ns?: Column;
    }[];
    /**
     * ceilings in force at the last reading: of a cgroup, of address space, of a device
     */
    limits: {
      name: string;
      bytes: number;
    }[];
  };
  markers: {
    at_ns: number;
    kind: string;
    value: number;
  }[];
  source: {
    which: "own" | "all" | "none";
    /**
     * hottest first
     */
    files: {
      /**
       * index into files
       */
      file: number;
      lines: number;
      pieces: {
        /**
         * of the text's first line
         */
        line: number;
        text: string;
      }[];
      /**
       * newer than the recording
       */
      changed: boolean;
    }[];
    /**
     * files that did not fit
     */
    left_out: number;
  };
  object_holders?: ObjectHolders;
  compared?: Compared;
  /**
   * This is all processes of a machine at one instant: its threads are the processes.
   */
  whole?: {
    processes: number;
    host: string;
    figures: {
      name: string;
      bytes: number;
      words: string;
    }[];
  };
}
/**
 * The report as `--format json` has it, without its stacks and tables: see report.schema.json. Large blocks have the frame of who allocated them in the place of a node.
 */
export interface Summary {
  schema?: "hiwater.report/3";
  process: Process;
  /**
   * The moment the counted kinds together were highest.
   */
  peak: {
    /**
     * requested bytes of live blocks, used anonymous mappings and shared memory that the process made at the allocated peak; the sum of stacks[].bytes of an unfiltered report of the peak
     */
    allocated_bytes: number;
    blocks: number;
    at_ns: number;
    python_bytes: number;
    native_bytes: number;
    mapping_bytes: number;
    device_bytes: number;
    shared_bytes: number;
    /**
     * upper bound for the standard error of allocated_bytes; 0 when every block was recorded
     */
    standard_error_bytes: number;
    /**
     * the recorder's own sum; equal to allocated_bytes but for a process killed in the middle of an event
     */
    recorded_bytes: number;
  };
  resident: {
    peak_bytes: number;
    start_bytes: number;
    end_bytes: number;
    /**
     * whether the peak is the kernel's high-water mark
     */
    exact: boolean;
    /**
     * most by which the peak may be off
     */
    error_bytes: number;
    source: string;
    /**
     * the recorder's own tables at their largest, part of peak_bytes
     */
    overhead_bytes: number;
    /**
     * the recorder's own tables at the end, part of end_bytes
     */
    overhead_end_bytes?: number;
    /**
     * the peak without overhead_bytes: what reports call resident
     */
    program_peak_bytes: number;
  };
  /**
   * where resident memory was, at the residency snapshot with the most of it; null in captures without residency snapshots
   */
  breakdown: ResidencySnapshot | null;
  /**
   * the same at the last snapshot
   */
  breakdown_at_end: ResidencySnapshot | null;
  /**
   * accelerators that the program used
   */
  devices: {
    /**
     * as the library names it: cuda:0
     */
    name: string;
    /**
     * the library: torch
     */
    backend: string;
    source: string;
    /**
     * whether the allocated and reserved peaks miss nothing; else they are lower bounds
     */
    exact: boolean;
    /**
     * why a peak is not exact
     */
    reason: string;
    limit_bytes: number | null;
    /**
     * what the library handed out; null: not measured
     */
    peak_allocated_bytes: number | null;
    /**
     * what the library held
     */
    peak_reserved_bytes: number | null;
    /**
     * what the driver counted for the process: highest sample
     */
    peak_used_bytes: number | null;
    peak_at_ns: number;
    samples: number;
    /**
     * what the memory consisted of, at the snapshot with the most: the terms up to "unaccounted" add up to "used by this process"; null where nobody looked
     */
    breakdown: {
      at_ns: number;
      terms: {
        name: string;
        /**
         * null: not known
         */
        bytes: number | null;
      }[];
    } | null;
    /**
     * the same at the last snapshot
     */
    breakdown_at_end: {
      at_ns: number;
      terms: {
        name: string;
        /**
         * null: not known
         */
        bytes: number | null;
      }[];
    } | null;
  }[];
  end: {
    allocated_bytes: number;
    blocks: number;
  };
  totals: {
    allocations: number;
    frees: number;
    allocated_bytes: number;
    /**
     * blocks freed before their thread's next allocation
     */
    temporaries: number;
    /**
     * frees of blocks from before the recording, which are in no other figure; 0 in a sampled recording, which does not count them
     */
    frees_from_before?: number;
  };
  lost_events: number;
  /**
   * what the recorded process did not let the recorder see
   */
  shortcomings: string[];
  /**
   * the processes that `hiwater sample` watched from outside, the target first
   */
  processes: Watched[];
  /**
   * named intervals that the program told of, as they ended
   */
  scopes: Scope[];
  /**
   * what contradicts itself in the capture; empty for a sound one
   */
  problems: string[];
  /**
   * listed and never counted, at the moment shown
   */
  mappings: {
    class: "file" | "attached" | "reserved" | "slack";
    bytes: number;
    blocks: number;
  }[];
  /**
   * What `stacks` is about: --at and --kind.
   */
  shown: {
    at: "peak" | "end" | "slice";
    at_ns: number;
    start_ns: number;
    end_ns: number;
    kind: "all" | "python" | "native" | "mapping" | "device" | "shared";
    /**
     * the sum of stacks[].bytes
     */
    bytes: number;
    blocks: number;
    /**
     * most by which any one stack's figure may be out of date
     */
    error_bytes: number;
  };
  /**
   * The line to change first, of what is shown. `hiwater run` and every report lead with it.
   */
  headline: UserLine | null;
  /**
   * All that is shown, by line: bytes and untouched_bytes of the rows sum to shown.bytes where none is left out. The user's own lines come first, then imports, then other code; most bytes first in each group.
   */
  lines: {
    rows: UserLine[];
    rows_left_out: number;
    imports_bytes: number;
    other_bytes: number;
    untouched_bytes: number;
  };
  /**
   * Advice, the largest sure saving first: at most five findings, each of at least 5 % of the peak and 1 MiB.
   */
  explain: {
    rule: string;
    function: string;
    /**
     * empty where a finding is about no line
     */
    file: string;
    line: number;
    evidence: {
      name: string;
      value: number;
      unit: "bytes" | "blocks" | "collections";
      /**
       * allocated or resident, when, exact or sampled
       */
      measures: string;
    }[];
    saving: {
      /**
       * a lower bound, as far as the recording's slices of time tell
       */
      least_bytes: number;
      most_bytes: number;
      /**
       * of which memory
       */
      measures: string;
      words: string;
    };
    /**
     * what to change in this line
     */
    change: string;
    /**
     * what has to hold, where a recording cannot tell; empty if nothing has
     */
    condition: string;
  }[];
  /**
   * The findings of `explain` in one sentence each. `bytes` is the least saving.
   */
  hints: {
    pattern: string;
    bytes: number;
    /**
     * what was found, what to change, and what it saves
     */
    words: string;
    function: string;
    /**
     * empty where a finding is about no line
     */
    file: string;
    line: number;
  }[];
}
export interface Process {
  pid: number;
  argv: string[];
  python: string;
  hiwater: string;
  mode: "exact" | "sampled" | "timeline" | "history";
  sample_bytes: number;
  ended: "exit" | "killed" | "recording";
  exit_code: number | null;
  stop_reason: string | null;
  /**
   * ISO 8601, UTC
   */
  started_at: string | null;
  duration_ns: number;
  /**
   * name of the machine; empty when it is not known
   */
  host?: string;
  /**
   * number of the process in a job
   */
  rank?: string | null;
  /**
   * allocators other than the C library's, the one malloc belongs to first; null where there is none
   */
  allocator?: string | null;
  /**
   * process number of the parent
   */
  parent_pid?: number | null;
  /**
   * how a recorded process started this one, `fork` or `exec`; empty when none did
   */
  started_by?: string;
  /**
   * what the parent had live at the fork; in no other figure of this process
   */
  inherited_bytes?: number;
  /**
   * the signal that ended the process, if it is known: by its capture, or because its parent learned it
   */
  signal?: string | null;
  /**
   * how the process ended, where more is known than its exit code: an uncaught signal, SIGSEGV at the end of a stack, a fatal error of the interpreter, `_exit()` without exit callbacks, another program in its place
   */
  ended_by?: "" | "signal" | "stack overflow" | "fatal error" | "_exit" | "exec";
  /**
   * the process and how it ended, as in every report; it may run on after its recording
   */
  words: string;
}
/**
 * Where resident memory was at one moment: the parts add up to resident_bytes.
 */
export interface ResidencySnapshot {
  at_ns: number;
  resident_bytes: number;
  parts: {
    name: string;
    /**
     * of `unexplained` it may be below zero: what changed between two readings
     */
    resident_bytes: number;
    /**
     * allocated and never written, so not resident
     */
    untouched_bytes: number;
  }[];
  large: {
    bytes: number;
    /**
     * in RAM
     */
    touched_bytes: number;
    from_malloc: boolean;
    thread: string;
    /**
     * the innermost frame of who allocated it, without the import system's; null where that is not known
     */
    frame: null | {
      function: string;
      file: string;
      line: number;
    };
  }[];
}
export interface Watched {
  pid: number;
  parent_pid: number;
  name: string;
  command: string[];
  start_ns: number;
  end_ns: number | null;
  /**
   * 0 for one that was too short-lived to be read
   */
  peak_bytes: number;
  exact: boolean;
  /**
   * negative for the signal that ended it; null where nobody could tell
   */
  exit_status: number | null;
  samples: number;
}
export interface Scope {
  name: string;
  pid: number;
  thread_id: number;
  depth: number;
  start_ns: number;
  end_ns: number;
  start_bytes: number | null;
  end_bytes: number | null;
  peak_bytes: number | null;
  allocated_start_bytes?: number | null;
  allocated_end_bytes?: number | null;
  allocated_peak_bytes?: number | null;
  /**
   * at the phase's end; of one that has not ended, when its process was last heard of
   */
  allocated_last_bytes?: number | null;
}
/**
 * A line of source, with all that it called. Each byte is in one line; bytes are without untouched_bytes.
 */
export interface UserLine {
  /**
   * line: of the user's own code; import: what an import allocated, by the line that imported; other: code that no line of the user's own code called
   */
  group: "line" | "import" | "other";
  function: string;
  file: string;
  line: number;
  bytes: number;
  blocks: number;
  /**
   * allocated, and in no residency snapshot touched: not in RAM
   */
  untouched_bytes: number;
  /**
   * standard error, at most; 0 where every block was recorded
   */
  standard_error_bytes: number;
  /**
   * the package that holds most of it; empty where none does
   */
  library: string;
  library_bytes: number;
}
/**
 * Whole numbers: the lowest bytes of all, then the next bytes of all, and so on.
 */
export interface Column {
  /**
   * first byte after the text
   */
  at: number;
  count: number;
  /**
   * bytes of each number
   */
  width: number;
  /**
   * 1: n stands for -(n+1)/2 when odd, n/2 when even
   */
  signed: 0 | 1;
}
/**
 * what the last search for holders found
 */
export interface ObjectHolders {
  search: number;
  name: string;
  at_ns: number;
  pause_ns: number;
  objects: number;
  bytes: number;
  /**
   * of which hiwater's own modules hold so much
   */
  hiwater_bytes: number;
  is_sampled: boolean;
  groups: HeldGroup[];
  groups_left_out: number;
  types: HeldType[];
}
/**
 * like objects that are held in the same way
 */
export interface HeldGroup {
  type: string;
  /**
   * 0: what is left of a module or a function whose parts are groups of their own
   */
  count: number;
  bytes: number;
  /**
   * what would be free without these objects
   */
  retained_bytes: number;
  held_by: string;
  path: string[];
  also_held_by: string[];
  allocated_at: HeldSite[];
  retained_allocated_at: HeldSite[];
  contents: HeldType[];
}
export interface HeldSite {
  file: string;
  line: number;
  function: string;
  group: string;
  blocks: number;
  bytes: number;
}
export interface HeldType {
  type: string;
  count: number;
  bytes: number;
}
/**
 * The earlier one of two captures that are compared; sizes are allocated bytes but for `resident`.
 */
export interface Compared {
  /**
   * the earlier capture
   */
  before: {
    name: string;
    title: string;
    python: string;
    pid: number;
    mode: "exact" | "sampled" | "timeline" | "history";
    sample_bytes: number;
    duration_ns: number;
    exactness: string;
    resident_exactness: string;
    peak_ns: number;
    /**
     * the moment that was compared
     */
    asked_ns: number;
  };
  /**
   * this one
   */
  after: {
    name: string;
  };
  /**
   * the net change and its largest causes: what every view of the comparison leads with
   */
  headline: {
    /**
     * after − before of what is compared; null where a capture does not have it
     */
    change_bytes: number | null;
    /**
     * the line of the user's own code that changed most in the direction of the net change, and the one that changed most against it if that is not small
     */
    causes: {
      change_bytes: number;
      state: "grew" | "shrank" | "new" | "gone" | "within error";
      function: string;
      file: string;
      line: number;
    }[];
    /**
     * the same in one line
     */
    words: string;
  };
  peak: Figure;
  resident: Figure;
  end: Figure;
  notes: string[];
}
/**
 * One quantity before and after; null where a capture does not have it.
 */
export interface Figure {
  before: number | null;
  after: number | null;
  change: number | null;
  percent: number | null;
  /**
   * upper bound for the standard error of the change; 0 when every block was recorded
   */
  standard_error: number;
  /**
   * no more than two standard errors
   */
  within_error: boolean;
}
/**
 * Of several processes: each in a row, those that a signal ended first, and what is known of the others in words.
 */
export interface Run {
  processes: RunProcess[];
  notes: string[];
  job?: Job;
}
export interface RunProcess {
  pid: number;
  program: string;
  started_by: string;
  /**
   * how it ended, in words; empty for exit code 0
   */
  ended: string;
  /**
   * a signal ended it
   */
  is_dead: boolean;
  peak_bytes: number;
  kept_bytes: number;
  resident_peak_bytes: number;
  inherited_bytes: number;
  /**
   * its number in captures; null if the page does not have it
   */
  capture: number | null;
  role?: Role;
}
/**
 * Of a process of a job, what it is there.
 */
export interface Role {
  host: string;
  rank: string;
  engine: string;
  /**
   * the engine's name of the process
   */
  worker: string;
  restart: string;
  /**
   * the part of the allocated peak that was never touched
   */
  untouched_bytes: number;
  /**
   * the highest part of the nearest limit that was used; null without a limit
   */
  limit_share: number | null;
  /**
   * the engine's own figures when the memory that it saw was highest; null for an engine that has none
   */
  engine_memory: {
    process_bytes: number;
    managed_bytes: number;
    unmanaged_bytes: number;
    spilled_bytes: number;
  } | null;
  /**
   * that held most when a killed process's capture ended; null for others
   */
  last_line: {
    function: string;
    file: string;
    line: number;
    bytes: number;
  } | null;
}
/**
 * Of the processes of a job (a cluster or a launcher): how uneven their peaks are and why, and what phases of each name cost over all of them.
 */
export interface Job {
  /**
   * with allocations
   */
  processes: number;
  /**
   * allocated, without what was never touched, as all peaks of a job
   */
  highest_peak_bytes: number;
  /**
   * the most that one process had allocated at its peak and never touched
   */
  highest_untouched_bytes: number;
  /**
   * of an even number, the lower of the two in the middle
   */
  median_peak_bytes: number;
  /**
   * the highest peak over the median one; null for fewer than three processes
   */
  skew: number | null;
  /**
   * the processes far above the median, at most three, the highest first
   */
  outliers: {
    pid: number;
    worker: string;
    host: string;
    peak_bytes: number;
    times_median: number;
    /**
     * of the process it is compared with
     */
    median_pid: number;
    /**
     * that ran at the peak; empty if none did
     */
    phase: string;
    /**
     * the lines that hold more than in the median process, at the peaks, without what was never touched; most first
     */
    causes: {
      function: string;
      file: string;
      line: number;
      more_bytes: number;
    }[];
  }[];
  /**
   * by name, over all processes; those that cost most first. Figures are of the whole process while the phase ran
   */
  phases: {
    name: string;
    ended: number;
    unfinished: number;
    processes: number;
    /**
     * of the highest allocated size during a phase over that at its start
     */
    median_rise_bytes: number;
    highest_rise_bytes: number;
    highest_peak_bytes: number;
    /**
     * what all phases of the name kept at their ends, in the process where that is most
     */
    kept_bytes: number;
    worst_pid: number;
    worst_worker: string;
    worst_host: string;
    /**
     * that held most at the highest moment of the worst phase; null if not looked for
     */
    line: {
      function: string;
      file: string;
      line: number;
      bytes: number;
    } | null;
  }[];
  /**
   * earlier phases that are in no figure: a capture keeps its last 10,000
   */
  phases_not_kept: number;
}
