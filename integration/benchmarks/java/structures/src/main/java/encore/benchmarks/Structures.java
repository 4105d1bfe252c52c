package encore.benchmarks;

import it.unimi.dsi.fastutil.longs.Long2ObjectAVLTreeMap;
import it.unimi.dsi.fastutil.longs.Long2ObjectMap;
import it.unimi.dsi.fastutil.longs.Long2ObjectOpenHashMap;
import it.unimi.dsi.fastutil.longs.Long2ObjectSortedMap;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import org.roaringbitmap.longlong.Roaring64Bitmap;

/**
 * Fills and drains one structure of Pulsar, and prints its figures as JSON.
 *
 * <p>Arguments: "pip393" or "heap", entries due in each millisecond, precision bits, entries,
 * entries of a ledger, and "drain" or "keep" (memory and adding only). Memory is the live heap after garbage collections. Times are CPU time of
 * this thread. The same work runs once before, so that it is compiled.
 */
public final class Structures {
    private static final ThreadMXBean CPU = ManagementFactory.getThreadMXBean();

    private interface Structure {
        void add(long dueMs, long ledger, long entry);

        /** Removes the entries that are due, as arrays, and returns their number. */
        long drain(long nowMs);
    }

    /** As in `NegativeAcksTracker` since PIP-393: due times are rounded down. */
    private static final class Pip393 implements Structure {
        private final Long2ObjectSortedMap<Long2ObjectMap<Roaring64Bitmap>> buckets =
                new Long2ObjectAVLTreeMap<>();
        private final int bits;

        Pip393(int bits) {
            this.bits = bits;
        }

        @Override
        public void add(long dueMs, long ledger, long entry) {
            buckets.computeIfAbsent(dueMs >> bits << bits, due -> new Long2ObjectOpenHashMap<>())
                    .computeIfAbsent(ledger, id -> new Roaring64Bitmap())
                    .addLong(entry);
        }

        @Override
        public long drain(long nowMs) {
            long count = 0;
            while (!buckets.isEmpty() && buckets.firstLongKey() <= nowMs) {
                for (Roaring64Bitmap entries : buckets.remove(buckets.firstLongKey()).values()) {
                    count += entries.toArray().length;
                }
            }
            return count;
        }
    }

    /**
     * A binary heap of (due time, ledger, entry) in segments of longs, like the broker's queue of
     * delayed messages (`TripleLongPriorityQueue`), which is in memory outside the Java heap.
     */
    private static final class Heap implements Structure {
        private static final int SEGMENT_BITS = 16;
        private static final int SEGMENT = 1 << SEGMENT_BITS;

        private final List<long[]> segments = new ArrayList<>();
        private int size;

        @Override
        public void add(long dueMs, long ledger, long entry) {
            if (size >> SEGMENT_BITS == segments.size()) {
                segments.add(new long[3 * SEGMENT]);
            }
            int at = size++;
            put(at, dueMs, ledger, entry);
            while (at > 0 && isLess(at, (at - 1) / 2)) {
                swap(at, (at - 1) / 2);
                at = (at - 1) / 2;
            }
        }

        @Override
        public long drain(long nowMs) {
            long[] taken = new long[1024];
            int count = 0;
            while (size > 0 && get(0, 0) <= nowMs) {
                if (2 * count + 2 > taken.length) {
                    taken = Arrays.copyOf(taken, 2 * taken.length);
                }
                taken[2 * count] = get(0, 1);
                taken[2 * count + 1] = get(0, 2);
                count++;
                removeFirst();
            }
            return count;
        }

        private void removeFirst() {
            swap(0, --size);
            int at = 0;
            while (true) {
                int least = at;
                for (int child = 2 * at + 1; child <= 2 * at + 2; child++) {
                    if (child < size && isLess(child, least)) {
                        least = child;
                    }
                }
                if (least == at) {
                    return;
                }
                swap(at, least);
                at = least;
            }
        }

        private long get(int at, int field) {
            return segments.get(at >> SEGMENT_BITS)[3 * (at & SEGMENT - 1) + field];
        }

        private void put(int at, long dueMs, long ledger, long entry) {
            long[] segment = segments.get(at >> SEGMENT_BITS);
            int place = 3 * (at & SEGMENT - 1);
            segment[place] = dueMs;
            segment[place + 1] = ledger;
            segment[place + 2] = entry;
        }

        private boolean isLess(int one, int other) {
            for (int field = 0; field < 3; field++) {
                int order = Long.compare(get(one, field), get(other, field));
                if (order != 0) {
                    return order < 0;
                }
            }
            return false;
        }

        private void swap(int one, int other) {
            long due = get(one, 0);
            long ledger = get(one, 1);
            long entry = get(one, 2);
            put(one, get(other, 0), get(other, 1), get(other, 2));
            put(other, due, ledger, entry);
        }
    }

    public static void main(String[] arguments) {
        String kind = arguments[0];
        long perMs = Long.parseLong(arguments[1]);
        int bits = Integer.parseInt(arguments[2]);
        long entries = Long.parseLong(arguments[3]);
        long perLedger = Long.parseLong(arguments[4]);
        boolean drains = arguments[5].equals("drain");
        Structure scratch = make(kind, bits);
        fill(scratch, perMs, Math.min(entries, 1_000_000), perLedger);
        if (drains) {
            drain(scratch, Math.min(entries, 1_000_000) / perMs, bits);
        }
        scratch = null;

        long before = liveBytes();
        Structure structure = make(kind, bits);
        long begun = CPU.getCurrentThreadCpuTime();
        fill(structure, perMs, entries, perLedger);
        double addNs = (double) (CPU.getCurrentThreadCpuTime() - begun) / entries;
        long bytes = liveBytes() - before;
        begun = CPU.getCurrentThreadCpuTime();
        long drained = drains ? drain(structure, entries / perMs, bits) : 0;
        double perSecond = drained * 1e9 / Math.max(1, CPU.getCurrentThreadCpuTime() - begun);
        if (drains && drained != entries) {
            throw new AssertionError(drained + " of " + entries + " entries came out");
        }
        System.out.printf(
                Locale.ROOT,
                "{\"keys\": %d, \"drained\": %d, \"bytes\": %d, \"add_ns\": %f, \"drain_per_s\": %f}%n",
                entries, drained, bytes, addNs, perSecond);
    }

    private static Structure make(String kind, int bits) {
        return switch (kind) {
            case "pip393" -> new Pip393(bits);
            case "heap" -> new Heap();
            default -> throw new IllegalArgumentException(kind);
        };
    }

    private static void fill(Structure structure, long perMs, long entries, long perLedger) {
        for (long i = 0; i < entries; i++) {
            structure.add(i / perMs, i / perLedger, i % perLedger);
        }
    }

    /** Moves the clock in a hundred steps, as the benchmark in Python does. */
    private static long drain(Structure structure, long latest, int bits) {
        long step = latest / 100 + 1;
        long drained = 0;
        for (long now = step; now < latest + 2 * step + (1L << bits); now += step) {
            drained += structure.drain(now);
        }
        return drained;
    }

    /** Collects until nothing more is freed: one collection is often not enough. */
    private static long liveBytes() {
        Runtime runtime = Runtime.getRuntime();
        long least = Long.MAX_VALUE;
        for (int unchanged = 0; unchanged < 3; unchanged++) {
            System.gc();
            long used = runtime.totalMemory() - runtime.freeMemory();
            if (used < least - 1024) {
                least = used;
                unchanged = 0;
            }
        }
        return least;
    }
}
