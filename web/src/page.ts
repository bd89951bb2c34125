// Made from src/hiwater/report/schemas/page.schema.json by `make web`; do not change it here.

/**
 * The data in a page of `hiwater report --format html` or `hiwater diff --format html`: base64 of a zlib stream that holds the length of this text (4 bytes, little-endian), this text as JSON, and the columns it speaks of. Sizes are bytes, times are nanoseconds since the recording began. Members are only ever added.
 */
export interface HiwaterPage {
  schema: "hiwater.page/3";
  /**
   * one for each process that was recorded, the first one first
   */
  captures: Capture[];
}
export interface Capture {
  title: string;
  summary: Summary;
  /**
   * how far the allocated peak can be trusted, in words
   */
  exactness: string;
  /**
   * what the command line asked for: the page opens there
   */
  asked: {
    at: "peak" | "end" | "slice" | "oom";
    slice: number | null;
    kind: string;
    by: string;
    inverted: boolean;
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
      group: "resident" | "kind" | "device" | "reserved" | "process";
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
  compared?: Compared;
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
     * the recorder's own tables, part of the other figures
     */
    overhead_bytes: number;
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
