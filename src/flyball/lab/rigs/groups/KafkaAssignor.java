// Kafka's server-side assignor, from its own jar, on a group that is read from standard input: the peer of the
// benchmark `groups`. Input: topics, members, queues of a topic, the number of the member that leaves, rounds; then for
// each topic one line of 0 and 1, who reads it. Output, for the first assignment and for the one after the leave: the
// median processor time in ms, the largest load, the sum of squared loads, and the queues that moved between members.

import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Optional;
import java.util.Scanner;
import java.util.Set;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.coordinator.group.api.assignor.GroupAssignment;
import org.apache.kafka.coordinator.group.api.assignor.GroupSpec;
import org.apache.kafka.coordinator.group.api.assignor.MemberAssignment;
import org.apache.kafka.coordinator.group.api.assignor.MemberSubscription;
import org.apache.kafka.coordinator.group.api.assignor.SubscribedTopicDescriber;
import org.apache.kafka.coordinator.group.api.assignor.SubscriptionType;
import org.apache.kafka.coordinator.group.assignor.UniformAssignor;

public class KafkaAssignor {
    record Subscription(Set<Uuid> subscribedTopicIds) implements MemberSubscription {
        public Optional<String> rackId() {
            return Optional.empty();
        }

        public Optional<String> instanceId() {
            return Optional.empty();
        }
    }

    record Owned(Map<Uuid, Set<Integer>> partitions) implements MemberAssignment {}

    record Group(Map<String, Subscription> members, Map<String, MemberAssignment> owned, Map<Uuid, Map<Integer, String>> owners)
            implements GroupSpec {
        public Collection<String> memberIds() {
            return members.keySet();
        }

        public SubscriptionType subscriptionType() {
            return SubscriptionType.HETEROGENEOUS;
        }

        public boolean isPartitionAssigned(Uuid topic, int partition) {
            return owners.getOrDefault(topic, Map.of()).containsKey(partition);
        }

        public boolean isPartitionAssignable(Uuid topic, int partition) {
            return true;
        }

        public MemberSubscription memberSubscription(String member) {
            return members.get(member);
        }

        public MemberAssignment memberAssignment(String member) {
            // The assignor copies on write and insists on maps that it knows to be immutable.
            MemberAssignment given = owned.get(member);
            return new Owned(given == null ? Collections.emptyMap() : Collections.unmodifiableMap(given.partitions()));
        }
    }

    record Topics(Set<Uuid> ids, int size) implements SubscribedTopicDescriber {
        public int numPartitions(Uuid topic) {
            return ids.contains(topic) ? size : -1;
        }

        public Set<String> racksForPartition(Uuid topic, int partition) {
            return Set.of();
        }
    }

    public static void main(String[] arguments) {
        Scanner in = new Scanner(System.in);
        int topics = in.nextInt(), members = in.nextInt(), size = in.nextInt(), leaver = in.nextInt(), rounds = in.nextInt();
        Uuid[] ids = new Uuid[topics];
        Map<String, Subscription> all = new LinkedHashMap<>();
        for (int member = 0; member < members; member++) {
            all.put(name(member), new Subscription(new HashSet<>()));
        }
        for (int topic = 0; topic < topics; topic++) {
            ids[topic] = new Uuid(7, topic + 1);
            String line = in.next();
            for (int member = 0; member < members; member++) {
                if (line.charAt(member) == '1') {
                    all.get(name(member)).subscribedTopicIds().add(ids[topic]);
                }
            }
        }
        Topics described = new Topics(new HashSet<>(Arrays.asList(ids)), size);
        Group empty = new Group(all, Map.of(), Map.of());
        GroupAssignment first = measure("first", empty, described, rounds, empty);
        Map<String, Subscription> left = new LinkedHashMap<>(all);
        left.remove(name(leaver));
        Map<String, MemberAssignment> owned = new HashMap<>(first.members());
        owned.remove(name(leaver));
        Map<Uuid, Map<Integer, String>> owners = new HashMap<>();
        owned.forEach((member, given) -> given.partitions().forEach((topic, partitions) -> {
            for (int partition : partitions) {
                owners.computeIfAbsent(topic, key -> new HashMap<>()).put(partition, member);
            }
        }));
        Group after = new Group(left, owned, owners);
        measure("leave", after, described, rounds, after);
    }

    static GroupAssignment measure(String event, Group group, Topics topics, int rounds, Group before) {
        UniformAssignor assignor = new UniformAssignor();
        ThreadMXBean clock = ManagementFactory.getThreadMXBean();
        double[] spent = new double[rounds];
        GroupAssignment result = null;
        for (int round = 0; round < 2 * rounds; round++) {  // the first half warms up
            long start = clock.getCurrentThreadCpuTime();
            result = assignor.assign(group, topics);
            spent[round % rounds] = (clock.getCurrentThreadCpuTime() - start) / 1e6;
        }
        Arrays.sort(spent);
        long largest = 0, squares = 0, moved = 0;
        for (Map.Entry<String, MemberAssignment> entry : result.members().entrySet()) {
            long load = 0;
            for (Map.Entry<Uuid, Set<Integer>> given : entry.getValue().partitions().entrySet()) {
                load += given.getValue().size();
                for (int partition : given.getValue()) {
                    String owner = before.owners().getOrDefault(given.getKey(), Map.of()).get(partition);
                    if (owner != null && !owner.equals(entry.getKey())) {
                        moved++;
                    }
                }
            }
            largest = Math.max(largest, load);
            squares += load * load;
        }
        System.out.printf("%s %.3f %d %d %d%n", event, spent[rounds / 2], largest, squares, moved);
        return result;
    }

    static String name(int member) {
        return String.format("m%05d", member);
    }
}
