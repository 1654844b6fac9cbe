rules = JSON.parse(<<'RULES')
@rules@
RULES
refused = lambda do |say|    # the first field that is wrong, in words; nil: all are right
  wrong = lambda { |rule, why| "#{rule["label"]}: #{why}; allowed: #{rule["allowed"]}" }
  texts = rules["fields"].to_h { |rule| [rule["key"], say.call(rule["name"]).to_s] }
  rules["fields"].each do |rule|
    text = texts[rule["key"]]
    next if text.empty? && rule["optional"]
    return wrong.call(rule, "is no text") unless text.valid_encoding?
    return wrong.call(rule, "is empty") if text.empty?
    return wrong.call(rule, "has #{text.length} characters") if text.length > rule["longest"]
    good = Regexp.new("\\A(?:" + rule["pattern"] + ")\\z").match?(text)
    good &&= text.to_f.between?(rule["low"], rule["high"]) if rule["low"]
    good &&= !"/#{text}/".include?("/../") if rule["path"]
    good &&= rule["choices"].include?(text) if rule["choices"]
    return wrong.call(rule, "is " + text[0, 60].dump) unless good
  end
  place, nodes = rules["places"][texts["place"]], texts["nodes"].to_i
  where = rules["fields"].find { |rule| rule["key"] == "place" }
  cluster = say.call("cluster").to_s
  if place["cluster"] && place["cluster"] != cluster
    return wrong.call(where, "is not on the cluster " + cluster[0, 60].dump)
  end
  least, most = place["nodes"]
  unless nodes.between?(least, most)
    return "Nodes: are #{nodes}; allowed there: #{least} to #{most}"
  end
  longest = place["times"].find { |upto, _| nodes <= upto }[1]
  asked, time = rules["fields"].find { |rule| rule["key"] == "time" }, texts["time"].to_i
  unless time.between?(place["least"], longest)
    return "#{asked["label"]}: are #{time}; allowed there: #{place["least"]} to #{longest}"
  end
  nil
end
