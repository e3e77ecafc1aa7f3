import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.DataInputStream;
import java.io.EOFException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.IndexedRecord;
import org.apache.avro.io.BinaryDecoder;
import org.apache.avro.io.DecoderFactory;

/**
 * Java's own Avro, asked over a pipe. In: a kind (0 schema, 1 datum), the schema's id, a length, the bytes; big-endian.
 * Out, for each datum: a line of JSON, in which bytes, floats and doubles are hex, so that not a bit gets lost.
 */
public class ReadAvro {
    public static void main(String[] arguments) throws IOException {
        var in = new DataInputStream(System.in);
        var json = new ObjectMapper();
        var readers = new HashMap<Integer, GenericDatumReader<Object>>();
        while (true) {
            int kind;
            try {
                kind = in.readByte();
            } catch (EOFException end) {
                return;
            }
            int id = in.readInt();
            byte[] raw = in.readNBytes(in.readInt());
            if (kind == 0) {
                readers.put(id, new GenericDatumReader<>(new Schema.Parser().parse(new String(raw, "UTF-8"))));
                continue;
            }
            Object said;
            try {
                BinaryDecoder decoder = DecoderFactory.get().binaryDecoder(raw, null);
                said = plain(readers.get(id).read(null, decoder));
                if (!decoder.isEnd()) {
                    said = Map.of("error", "bytes are left over");
                }
            } catch (RuntimeException | IOException error) {
                said = Map.of("error", error.toString());
            }
            System.out.write(json.writeValueAsBytes(said));
            System.out.write('\n');
            System.out.flush();
        }
    }

    private static Object plain(Object value) {
        if (value instanceof IndexedRecord record) {
            var fields = new LinkedHashMap<String, Object>();
            for (Schema.Field field : record.getSchema().getFields()) {
                fields.put(field.name(), plain(record.get(field.pos())));
            }
            return fields;
        }
        if (value instanceof Map<?, ?> map) {
            var entries = new LinkedHashMap<String, Object>();
            map.forEach((key, each) -> entries.put(key.toString(), plain(each)));
            return Map.of("map", entries);
        }
        if (value instanceof Iterable<?> items) {
            List<Object> list = new ArrayList<>();
            items.forEach(item -> list.add(plain(item)));
            return list;
        }
        if (value instanceof ByteBuffer buffer) {
            byte[] raw = new byte[buffer.remaining()];
            buffer.duplicate().get(raw);
            return Map.of("bytes", HexFormat.of().formatHex(raw));
        }
        if (value instanceof Float number) {
            return Map.of("float", String.format("%08x", Float.floatToRawIntBits(number)));
        }
        if (value instanceof Double number) {
            return Map.of("double", String.format("%016x", Double.doubleToRawLongBits(number)));
        }
        return value instanceof CharSequence ? value.toString() : value;
    }
}
